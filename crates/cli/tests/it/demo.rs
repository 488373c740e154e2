//! `lockify demo`, on a small tree.

use crate::common::{User, code, stderr, stdout};

fn tree(user: &User) -> std::path::PathBuf {
    let tree = user.dir().join("tree");
    for dir in ["a", "a/b", "c"] {
        std::fs::create_dir_all(tree.join(dir)).unwrap();
        for i in 0..60 {
            std::fs::write(tree.join(dir).join(format!("f{i}")), "").unwrap();
        }
    }
    tree
}

#[test]
fn creates_checks_reports_and_cleans_up() {
    let user = User::new();
    let (tree, out) = (tree(&user), user.dir().join("out"));
    let (tree, out) = (tree.to_str().unwrap(), out.to_str().unwrap());
    let args = ["demo", "--tree", tree, "--out", out, "--rounds", "1", "--delay", "0s,200us"];
    let ran = user.lockify(&args);
    assert_eq!(code(&ran), 0, "{ran:?}");
    let said = stdout(&ran);
    assert!(said.contains("0 violations in "), "{said}");
    for policy in ["directory", "claim", "broadcast", "home"] {
        assert!(said.contains(policy), "{said}");
    }
    // The waits follow from the protocol, at any speed of the machine.
    assert!(said.contains("pass         delay 0ns: claim waits for 0.00"), "{said}");
    let rows = std::fs::read_to_string(format!("{out}/report.jsonl")).unwrap();
    for row in rows.lines() {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        assert_eq!(row["bench"], "demo");
        // A round of claims has four pairs of one node and five, any other round has one.
        let claims = row["case"]["policy"] == "claim" && row["case"]["active"] == 1;
        assert_eq!(row["rounds"].as_array().unwrap().len(), if claims { 4 } else { 1 }, "{row}");
    }
    // Two delays, four policies, three cases of eleven figures, and the ratio.
    assert_eq!(rows.lines().count(), 2 * 4 * (3 * 11 + 1));
    let page = std::fs::read_to_string(format!("{out}/report.html")).unwrap();
    assert!(page.contains("<svg"));
    let left: Vec<_> = std::fs::read_dir(out).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "rows, page and the lock file: {left:?}");
}

#[test]
fn bad_input_says_what_to_do() {
    let user = User::new();
    let out = user.dir().join("out");
    let out = out.to_str().unwrap();
    let small = user.dir().join("small");
    std::fs::create_dir(&small).unwrap();
    let ran = user.lockify(&["demo", "--out", out, "--tree", small.to_str().unwrap()]);
    assert_eq!(code(&ran), 3, "{ran:?}");
    assert!(stderr(&ran).contains("--mdtest"), "{ran:?}");
    let ran = user.lockify(&["demo", "--out", out, "--policy", "magic"]);
    assert_eq!(code(&ran), 2, "{ran:?}");
    assert!(stderr(&ran).contains("directory, claim"), "{ran:?}");
    let ran = user.lockify(&["demo", "--out", out, "--rounds", "0"]);
    assert_eq!(code(&ran), 2, "{ran:?}");
}
