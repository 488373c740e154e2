use super::*;

/// The kernel's files of a node with a lockspace that claims, and of a stock one.
fn sys() -> tempfile::TempDir {
    let sys = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = sys.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("kernel/dlm/clustered/claim", "on\n");
    put("kernel/dlm/clustered/id", "7\n");
    put("kernel/dlm/stock/id", "8\n");
    put(
        "kernel/debug/dlm/clustered_claim",
        "claims 5\nrefusals 1\nbarrier_wait_max_us 1500\npending 2\nagreed 1\n",
    );
    put("kernel/config/dlm/cluster/comms/1/local", "0\n");
    put("kernel/config/dlm/cluster/comms/2/local", "1\n");
    put("kernel/config/dlm/cluster/spaces/clustered/nodes/2/nodeid", "2\n");
    put("kernel/config/dlm/cluster/spaces/clustered/nodes/1/nodeid", "1\n");
    sys
}

fn error(sys: &Path) -> String {
    look(sys).unwrap_err().to_string()
}

#[test]
fn each_lockspace_has_its_members_and_counters() {
    let sys = sys();
    let status = look(sys.path()).unwrap();
    assert_eq!(status.node, Some(2));
    let [clustered, stock] = &status.lockspaces[..] else { panic!("{status:?}") };
    assert_eq!((&clustered.name[..], &clustered.members[..]), ("clustered", &[1, 2][..]));
    assert_eq!((clustered.claim.as_deref(), clustered.agreed), (Some("on"), Some(true)));
    assert_eq!(clustered.counters["claims"], 5);
    assert_eq!((&stock.claim, stock.agreed), (&None, None));
    let table = table(&status);
    assert!(table.starts_with("node 2\n") && table.contains("1ms 500us"), "{table}");
    assert!(table.contains("not in this kernel"), "{table}");
    let metrics = metrics::text(&status).unwrap();
    let of = "{lockspace=\"clustered\",node=\"2\"}";
    assert!(metrics.contains(&format!("lockify_kernel_pending_claims{of} 2.0")), "{metrics}");
    assert!(metrics.contains(&format!("lockify_kernel_claims_total{of} 5.0")), "{metrics}");
    let longest = format!("lockify_kernel_barrier_longest_wait_seconds{of} 0.0015");
    assert!(metrics.contains(&longest), "{metrics}");
    assert!(!metrics.contains("stock"), "{metrics}");
}

#[test]
fn a_claim_that_is_on_to_no_effect_is_told() {
    let sys = sys();
    let file = sys.path().join("kernel/debug/dlm/clustered_claim");
    fs::write(&file, "pending 0\nagreed 0\n").unwrap();
    let status = look(sys.path()).unwrap();
    assert!(status.lockspaces[0].is_held_back());
    assert!(table(&status).contains("a member does not know them"));
    fs::write(sys.path().join("kernel/dlm/clustered/claim"), "off\n").unwrap();
    assert!(!look(sys.path()).unwrap().lockspaces[0].is_held_back());
}

#[test]
fn what_is_missing_is_said_with_the_way_out() {
    let sys = sys();
    let file = sys.path().join("kernel/debug/dlm/clustered_claim");
    fs::write(&file, "pending many\n").unwrap();
    assert!(error(sys.path()).contains("\"pending many\" is not a name and a number"));
    fs::write(&file, [0xff]).unwrap();
    assert!(error(sys.path()).contains("cannot read"));
    fs::remove_file(&file).unwrap();
    assert!(error(sys.path()).contains("mount -t debugfs"));
    fs::remove_dir_all(sys.path().join("kernel/dlm")).unwrap();
    assert!(error(sys.path()).contains("modprobe dlm"));
}
