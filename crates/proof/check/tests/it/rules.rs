//! For each rule a history that keeps it and histories that break it.

use lockify_check::{Options, Outcome, Report, check_reader};
use lockify_history::Reader;

/// Checks a history. Lines are written shorter here: `t` is the line's number, and the keys that
/// every line repeats have one letter.
fn check(history: &str) -> Report {
    let mut text = String::new();
    let lines = history.lines().filter(|line| !line.trim().is_empty());
    for (i, line) in lines.enumerate() {
        let line = line
            .trim()
            .replace("e:", "\"event\":")
            .replace("n:", "\"node\":")
            .replace("l:", "\"lock\":")
            .replace("r:", "\"resource\":\"r\",\"x\":")
            .replace(",\"x\":1", "")
            .replace("m:", "\"mode\":");
        text += &format!("{{\"t\":{},{line}}}\n", i + 1);
    }
    match check_reader(Reader::new(text.as_bytes()), Options::recorded()) {
        Outcome::Checked(report) => report,
        Outcome::Unreadable { error, .. } => panic!("{error} in\n{text}"),
    }
}

/// The one rule that is broken, and the lines that show it.
fn broken(history: &str) -> (&'static str, Vec<u64>) {
    let report = check(history);
    assert_eq!(report.violated, 1, "{report}");
    (report.violations[0].rule, report.violations[0].lines.clone())
}

fn clean(rule: &str, history: &str) -> Report {
    let report = check(history);
    assert!(report.is_clean(), "{report}");
    assert!(report.checked.contains(&rule), "{rule} was not judged:\n{report}");
    report
}

#[test]
fn holds_that_do_not_overlap_are_compatible() {
    clean(
        "compatible_grants",
        r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        e:"request",n:2,l:1,r:1,m:"PR"
        e:"convert",n:1,l:1,m:"PR"
        e:"grant",n:2,l:1,m:"PR"
        e:"grant",n:1,l:1,m:"PR"
        "#,
    );
}

#[test]
fn two_exclusive_holds_are_found() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        e:"request",n:2,l:1,r:1,m:"EX"
        e:"grant",n:2,l:1,m:"EX"
        "#;
    assert_eq!(broken(history), ("compatible_grants", vec![2, 4]));
}

#[test]
fn an_upward_conversion_keeps_its_old_mode_meanwhile() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"PR"
        e:"grant",n:1,l:1,m:"PR"
        e:"request",n:2,l:1,r:1,m:"CW"
        e:"convert",n:1,l:1,m:"EX"
        e:"grant",n:2,l:1,m:"CW"
        "#;
    assert_eq!(broken(history), ("compatible_grants", vec![2, 5]));
}

#[test]
fn a_conversion_that_fails_leaves_the_old_mode() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"PR"
        e:"grant",n:1,l:1,m:"PR"
        e:"convert",n:1,l:1,m:"CW","flags":["noqueue"]
        e:"complete",n:1,l:1,"status":11
        e:"request",n:2,l:1,r:1,m:"CW"
        e:"grant",n:2,l:1,m:"CW"
        "#;
    assert_eq!(broken(history), ("compatible_grants", vec![2, 6]));
}

#[test]
fn a_middle_conversion_may_be_in_force_before_it_is_delivered() {
    clean(
        "compatible_grants",
        r#"
        e:"request",n:1,l:1,r:1,m:"PR"
        e:"grant",n:1,l:1,m:"PR"
        e:"convert",n:1,l:1,m:"CW"
        e:"request",n:2,l:1,r:1,m:"CW"
        e:"grant",n:2,l:1,m:"CW"
        e:"grant",n:1,l:1,m:"CW"
        "#,
    );
}

#[test]
fn provisional_overlaps_are_counted() {
    let report = clean(
        "compatible_grants",
        r#"
        e:"request",n:1,l:1,r:1,m:"EX","flags":["notify"]
        e:"claim",n:1,r:1,"claim_id":1
        e:"grant",n:1,l:1,m:"EX","provisional":true,"claim_id":1
        e:"request",n:2,l:1,r:1,m:"EX"
        e:"grant",n:2,l:1,m:"EX"
        e:"refuse",n:1,r:1,"claim_id":1,"master":2
        e:"conflict",n:1,r:1,"claim_id":1
        e:"lost",n:1,l:1
        e:"end"
        "#,
    );
    assert_eq!((report.counts.provisional, report.counts.provisional_overlaps), (1, 1));
}

#[test]
fn a_provisional_hold_counts_in_full_once_its_claim_is_settled() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"EX","flags":["notify"]
        e:"claim",n:1,r:1,"claim_id":1
        e:"grant",n:1,l:1,m:"EX","provisional":true,"claim_id":1
        e:"request",n:2,l:1,r:1,m:"EX"
        e:"grant",n:2,l:1,m:"EX"
        e:"confirm",n:1,r:1,"claim_id":1
        "#;
    assert_eq!(broken(history), ("compatible_grants", vec![3, 5, 6]));
}

#[test]
fn no_provisional_hold_is_left_at_the_end() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX","provisional":true
        e:"end"
        "#;
    assert_eq!(broken(history), ("compatible_grants", vec![2]));
}

const DEATH: &str = r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        e:"request",n:2,l:1,r:1,m:"EX"
        e:"crash",n:1
"#;

#[test]
fn a_dead_nodes_lock_is_granted_after_recovery() {
    let rest = r#"
        e:"recover",n:2,"view":2,"members":[{"node":2}]
        e:"grant",n:2,l:1,m:"EX"
        "#;
    clean("compatible_grants", &(DEATH.to_owned() + rest));
}

#[test]
fn a_dead_nodes_lock_is_not_granted_before_recovery() {
    let rest = r#"e:"grant",n:2,l:1,m:"EX""#;
    assert_eq!(broken(&(DEATH.to_owned() + rest)), ("compatible_grants", vec![2, 4, 5]));
}

#[test]
fn a_view_that_still_has_the_dead_node_is_no_recovery() {
    let rest = r#"
        e:"recover",n:2,"view":2,"members":[{"node":1},{"node":2}]
        e:"grant",n:2,l:1,m:"EX"
        "#;
    assert_eq!(broken(&(DEATH.to_owned() + rest)), ("compatible_grants", vec![2, 4, 6]));
}

#[test]
fn a_new_incarnation_shows_that_the_old_one_died() {
    let history = r#"
        e:"request",n:1,"incarnation":1,l:1,r:1,m:"EX"
        e:"grant",n:1,"incarnation":1,l:1,m:"EX"
        e:"request",n:1,"incarnation":2,l:1,r:1,m:"EX"
        e:"grant",n:1,"incarnation":2,l:1,m:"EX"
        "#;
    assert_eq!(broken(history), ("compatible_grants", vec![2, 3, 4]));
}

#[test]
fn what_a_client_held_goes_with_it() {
    clean(
        "compatible_grants",
        r#"
        e:"request",n:1,l:1,r:1,m:"EX","client":"a"
        e:"grant",n:1,l:1,m:"EX","client":"a"
        e:"gone",n:1,"client":"a"
        e:"request",n:1,l:2,r:1,m:"EX","client":"b"
        e:"grant",n:1,l:2,m:"EX","client":"b"
        "#,
    );
}

#[test]
fn mastership_that_moves_in_order_is_clean() {
    clean(
        "one_master",
        r#"
        e:"dir",n:3,r:1,"master":1
        e:"master",n:1,r:1
        e:"master",n:1,r:1,"gained":false
        e:"dir",n:3,r:1
        e:"dir",n:3,r:1,"master":2
        e:"master",n:2,r:1
        e:"end"
        "#,
    );
}

#[test]
fn two_masters_are_found() {
    let history = r#"
        e:"master",n:1,r:1
        e:"master",n:2,r:1
        e:"end"
        "#;
    assert_eq!(broken(history), ("one_master", vec![1, 2]));
}

#[test]
fn a_claimer_is_no_second_master_until_it_is_confirmed() {
    let claimed = r#"
        e:"master",n:1,r:1
        e:"claim",n:2,r:1,"claim_id":1
        e:"master",n:2,r:1
        e:"fault"
    "#;
    let refused = r#"
        e:"refuse",n:2,r:1,"claim_id":1,"master":1
        e:"merge",n:2,r:1,"claim_id":1,"master":1
        e:"end"
        "#;
    clean("one_master", &(claimed.to_owned() + refused));
    let confirmed = r#"
        e:"confirm",n:2,r:1,"claim_id":1
        e:"end"
        "#;
    assert_eq!(broken(&(claimed.to_owned() + confirmed)), ("one_master", vec![1, 3]));
}

#[test]
fn a_directory_that_names_another_master_is_found() {
    let history = r#"
        e:"dir",n:3,r:1,"master":1
        e:"master",n:1,r:1
        e:"dir",n:3,r:1,"master":2
        e:"end"
        "#;
    assert_eq!(broken(history), ("one_master", vec![2, 3]));
}

#[test]
fn masters_that_overlap_only_during_recovery_are_clean() {
    let history = r#"
        e:"master",n:1,r:1
        e:"view",n:1,"view":2
        e:"view",n:2,"view":2
        e:"master",n:2,r:1
        e:"fault"
        e:"master",n:1,r:1,"gained":false
        e:"recover",n:1,"view":2
        e:"recover",n:2,"view":2
        e:"end"
        "#;
    clean("one_master", history);
    let never_gave_up = history.replace(r#","gained":false"#, "");
    assert_eq!(broken(&never_gave_up).0, "one_master");
}

#[test]
fn a_member_that_has_not_entered_the_newest_view_recovers_still() {
    let history = r#"
        e:"master",n:1,r:1
        e:"view",n:1,"view":2,"members":[{"node":1},{"node":2},{"node":3}]
        e:"view",n:2,"view":2,"members":[{"node":1},{"node":2},{"node":3}]
        e:"view",n:3,"view":2,"members":[{"node":1},{"node":2},{"node":3}]
        e:"master",n:2,r:1
        e:"view",n:3,"view":3,"members":[{"node":1},{"node":2},{"node":3}]
        e:"crash",n:3
        e:"fault"
        "#;
    clean("one_master", history);
    // A view without a node does not wait for it.
    let (before, after) =
        history.split_once(r#""view":3,"members":[{"node":1},{"node":2},"#).unwrap();
    assert_eq!(broken(&format!(r#"{before}"view":3,"members":[{after}"#)).0, "one_master");
}

#[test]
fn claims_that_end_are_clean() {
    clean(
        "claims_end",
        r#"
        e:"claim",n:1,r:1,"claim_id":1
        e:"claim",n:1,r:1,"claim_id":2
        e:"claim",n:1,r:1,"claim_id":3
        e:"claim",n:1,r:1,"claim_id":4
        e:"claim",n:2,r:1,"claim_id":1
        e:"confirm",n:1,r:1,"claim_id":1
        e:"refuse",n:1,r:1,"claim_id":2,"master":2
        e:"merge",n:1,r:1,"claim_id":2,"master":2
        e:"conflict",n:1,r:1,"claim_id":3
        e:"drop",n:1,r:1,"claim_id":4
        e:"crash",n:2
        e:"end"
        "#,
    );
}

#[test]
fn a_refusal_alone_does_not_end_a_claim() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"claim",n:1,r:1,"claim_id":1
        e:"grant",n:1,l:1,m:"EX","provisional":true
        e:"refuse",n:1,r:1,"claim_id":1,"master":2
        e:"end"
        "#;
    let report = check(history);
    let found: Vec<_> = report.violations.iter().map(|v| (v.rule, v.lines.as_slice())).collect();
    assert_eq!(found, [("compatible_grants", &[3][..]), ("claims_end", &[2][..])]);
    // Refused before anything was granted on it, a claim is an ordinary request.
    let strict = history.replace("        e:\"grant\",n:1,l:1,m:\"EX\",\"provisional\":true\n", "");
    assert_eq!(broken(&strict), ("progress", vec![1]));
}

const PARENT: &str = r#"
        e:"request",n:1,l:1,"resource":"parent",m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        e:"claim",n:1,r:1,"claim_id":1
"#;

#[test]
fn a_weakening_that_waits_for_the_claims_is_clean() {
    let rest = r#"
        e:"convert",n:1,l:1,m:"NL"
        e:"barrier",n:1,l:1,"waits":true
        e:"claim",n:1,"resource":"later","claim_id":2
        e:"confirm",n:1,r:1,"claim_id":1
        e:"barrier",n:1,l:1,"waits":false
        e:"grant",n:1,l:1,m:"NL"
        "#;
    let report = clean("barrier", &(PARENT.to_owned() + rest));
    assert_eq!(report.counts.barrier_waits, 1);
}

#[test]
fn a_weakening_during_a_claim_is_found() {
    let unlock = r#"
        e:"unlock",n:1,l:1
        e:"complete",n:1,l:1,"status":65538
        "#;
    let downward = r#"
        e:"convert",n:1,l:1,m:"PW"
        e:"grant",n:1,l:1,m:"PW"
        "#;
    for rest in [unlock, downward] {
        assert_eq!(broken(&(PARENT.to_owned() + rest)), ("barrier", vec![3, 4, 5]));
    }
}

#[test]
fn a_wait_that_ends_too_early_is_found() {
    let rest = r#"
        e:"unlock",n:1,l:1
        e:"barrier",n:1,l:1,"waits":true
        e:"barrier",n:1,l:1,"waits":false
        "#;
    assert_eq!(broken(&(PARENT.to_owned() + rest)), ("barrier", vec![3, 4, 6]));
}

#[test]
fn a_weakening_without_a_wait_is_found_even_if_it_completes_late() {
    let rest = r#"
        e:"unlock",n:1,l:1
        e:"confirm",n:1,r:1,"claim_id":1
        e:"complete",n:1,l:1,"status":65538
        "#;
    let history = PARENT.trim().to_owned() + rest.trim_end();
    clean("barrier", &history);
    let traced = r#"e:"begin","writes":["barrier"]"#.to_owned() + "\n" + &history;
    assert_eq!(broken(&traced), ("barrier", vec![4, 5, 7]));
}

#[test]
fn the_barrier_exempts_objects_that_are_freed_and_weaker_modes() {
    let freed = r#"
        e:"unlock",n:1,l:1,"freed":true
        e:"complete",n:1,l:1,"status":65538
        "#;
    clean("barrier", &(PARENT.to_owned() + freed));
    let shared = PARENT.replace("EX", "PR");
    clean("barrier", &(shared + &freed.replace(",\"freed\":true", "")));
}

#[test]
fn a_conversion_that_comes_out_weaker_is_under_the_barrier() {
    let start = PARENT.replace("EX", "PW");
    let demoted = r#"
        e:"convert",n:1,l:1,m:"EX","flags":["convdeadlk"]
        e:"grant",n:1,l:1,m:"EX","sb_flags":["demoted"]
        "#;
    assert_eq!(broken(&(start.clone() + demoted)), ("barrier", vec![3, 4, 5]));
    let alternative = r#"
        e:"convert",n:1,l:1,m:"EX","flags":["altpr"]
        e:"grant",n:1,l:1,m:"PR","sb_flags":["altmode"]
        "#;
    assert_eq!(broken(&(start.clone() + alternative)), ("barrier", vec![3, 4, 5]));
    let upward = alternative.replace("m:\"PR\",\"sb_flags\":[\"altmode\"]", "m:\"EX\"");
    clean("barrier", &(start + &upward));
}

#[test]
fn completions_that_come_once_are_clean() {
    clean(
        "completion_once",
        r#"
        e:"request",n:1,l:1,r:1,m:"PR","op":1
        e:"grant",n:1,l:1,m:"PR","op":1
        e:"convert",n:1,l:1,m:"EX","op":2
        e:"cancel",n:1,l:1
        e:"complete",n:1,l:1,"status":65537,"op":2
        e:"convert",n:1,l:1,m:"EX","op":3
        e:"unlock",n:1,l:1,"flags":["force"],"op":4
        e:"complete",n:1,l:1,"status":65538,"op":4
        e:"end"
        "#,
    );
}

#[test]
fn a_doubled_completion_is_found() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"PR"
        e:"grant",n:1,l:1,m:"PR"
        e:"grant",n:1,l:1,m:"PR"
        "#;
    assert_eq!(broken(history), ("completion_once", vec![2, 3]));
    let other_op = history.replacen("m:\"PR\"", "m:\"PR\",\"op\":1", 2).replace(
        "e:\"grant\",n:1,l:1,m:\"PR\"\n        ",
        "e:\"grant\",n:1,l:1,m:\"PR\",\"op\":2\n        ",
    );
    assert_eq!(check(&other_op).violations[0].rule, "completion_once");
}

#[test]
fn a_completion_out_of_nowhere_is_found_if_the_history_is_whole() {
    let history = r#"e:"begin"
        e:"request",n:1,l:2,r:1,m:"PR"
        e:"grant",n:1,l:2,m:"PR"
        e:"complete",n:1,l:1,"status":65538"#;
    assert_eq!(broken(history), ("completion_once", vec![4]));
    clean("completion_once", history.strip_prefix("e:\"begin\"").unwrap());
}

#[test]
fn a_lost_completion_is_found() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"PR"
        e:"grant",n:1,l:1,m:"PR"
        e:"convert",n:1,l:1,m:"NL"
        e:"unlock",n:1,l:1
        e:"complete",n:1,l:1,"status":65538
        "#;
    let report = check(history);
    assert!(report.violations.iter().all(|v| v.rule == "completion_once"), "{report}");
    assert_eq!(report.violations[0].lines, [3, 4]);
}

const WRITE: &str = r#"
        e:"begin"
        e:"request",n:1,l:1,r:1,m:"EX","flags":["valblk"]
        e:"grant",n:1,l:1,m:"EX"
        e:"request",n:2,l:1,r:1,m:"PR","flags":["valblk"]
        e:"convert",n:1,l:1,m:"NL","flags":["valblk"],"lvb":"0a0b"
        e:"grant",n:1,l:1,m:"NL"
"#;

#[test]
fn a_value_block_that_is_read_as_written_is_clean() {
    let rest = r#"e:"grant",n:2,l:1,m:"PR","lvb":"0a0b""#;
    let report = clean("lvb", &(WRITE.to_owned() + rest));
    assert_eq!(report.counts.lvb_reads, 2);
}

#[test]
fn a_wrong_value_block_is_found() {
    let wrong = WRITE.to_owned() + r#"e:"grant",n:2,l:1,m:"PR","lvb":"0a0c""#;
    assert_eq!(broken(&wrong), ("lvb", vec![5, 4, 7]));
    let none =
        WRITE.replace("begin\"", "begin\",\"writes\":[\"lvb\"]") + r#"e:"grant",n:2,l:1,m:"PR""#;
    assert_eq!(broken(&none), ("lvb", vec![5, 4, 7]));
    let spurious =
        WRITE.to_owned() + r#"e:"grant",n:2,l:1,m:"PR","lvb":"0a0b","sb_flags":["valnotvalid"]"#;
    assert_eq!(broken(&spurious), ("lvb", vec![5, 4, 7]));
}

#[test]
fn a_value_block_that_nobody_wrote_is_found() {
    let history = r#"
        e:"begin"
        e:"request",n:2,l:1,r:1,m:"PR","flags":["valblk"]
        e:"grant",n:2,l:1,m:"PR","lvb":"01"
        e:"request",n:2,l:2,"resource":"other",m:"EX"
        e:"grant",n:2,l:2,m:"EX"
        e:"unlock",n:2,l:2,"flags":["valblk"],"lvb":"01"
        "#;
    assert_eq!(broken(history), ("lvb", vec![2, 3]));
}

#[test]
fn an_invalidated_value_block_must_be_reported() {
    let invalid = r#"
        e:"begin"
        e:"request",n:1,l:1,r:1,m:"EX","flags":["valblk"]
        e:"grant",n:1,l:1,m:"EX"
        e:"convert",n:1,l:1,m:"EX","flags":["valblk"],"lvb":"0a0b"
        e:"grant",n:1,l:1,m:"EX"
        e:"request",n:2,l:1,r:1,m:"PR","flags":["valblk"]
        e:"convert",n:1,l:1,m:"NL","flags":["ivvalblk"]
        e:"grant",n:1,l:1,m:"NL"
"#
    .to_owned();
    let told = r#"e:"grant",n:2,l:1,m:"PR","lvb":"0a0b","sb_flags":["valnotvalid"]"#;
    clean("lvb", &(invalid.clone() + told));
    let untold = r#"e:"grant",n:2,l:1,m:"PR","lvb":"0a0b""#;
    assert_eq!(broken(&(invalid + untold)), ("lvb", vec![7, 6, 9]));
}

#[test]
fn a_lock_that_goes_down_where_it_is_does_not_prove_that_its_write_has_arrived() {
    let history = r#"
        e:"begin"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        e:"request",n:2,l:1,r:1,m:"NL"
        e:"grant",n:2,l:1,m:"NL"
        e:"convert",n:1,l:1,m:"EX","flags":["valblk"],"lvb":"09"
        e:"grant",n:1,l:1,m:"EX"
        e:"convert",n:1,l:1,m:"PW","flags":["valblk"],"lvb":"0a"
        e:"grant",n:1,l:1,m:"PW"
        e:"convert",n:1,l:1,m:"PR"
        e:"grant",n:1,l:1,m:"PR"
        e:"convert",n:2,l:1,m:"NL","flags":["valblk"]
        e:"grant",n:2,l:1,m:"NL","lvb":"09"
        "#;
    clean("lvb", history);
}

/// Node 1's write is on its way when node 2 gives a request up that could have written. Node 4's CR goes past
/// the write, node 5's PR comes after it.
const TWO_ON_THEIR_WAY: &str = r#"
        e:"begin"
        e:"request",n:3,l:1,r:1,m:"NL"
        e:"grant",n:3,l:1,m:"NL"
        e:"request",n:1,l:1,r:1,m:"EX","client":"c"
        e:"grant",n:1,l:1,m:"EX"
        e:"convert",n:1,l:1,m:"PW","flags":["valblk"],"lvb":"09"
        e:"grant",n:1,l:1,m:"PW"
        e:"request",n:2,l:1,r:1,m:"PR","flags":["valblk"]
        e:"unlock",n:1,l:1,"flags":["valblk"],"lvb":"0a"
        NEXT
        e:"unlock",n:2,l:1,"flags":["force"]
        e:"complete",n:2,l:1,"status":65538
        e:"request",n:4,l:1,r:1,m:"CR","flags":["valblk"]
        e:"request",n:5,l:1,r:1,m:"PR","flags":["valblk"]
        e:"grant",n:5,l:1,m:"PR","lvb":"0a"
        e:"grant",n:4,l:1,m:"CR","lvb":"09""#;

#[test]
fn the_end_of_one_unlock_does_not_prove_that_another_ones_write_has_arrived() {
    let under_way = TWO_ON_THEIR_WAY.replace("NEXT", r#"e:"fault""#);
    assert_eq!(clean("lvb", &under_way).counts.lvb_reads, 1);
    let arrived = TWO_ON_THEIR_WAY.replace("NEXT", r#"e:"complete",n:1,l:1,"status":65538"#);
    assert_eq!(broken(&arrived), ("lvb", vec![11, 13, 16]));
}

#[test]
fn the_write_of_a_client_that_dies_may_still_be_on_its_way() {
    let dies = TWO_ON_THEIR_WAY.replace("NEXT", r#"e:"gone",n:1,"client":"c""#);
    assert_eq!(clean("lvb", &dies).counts.lvb_reads, 1);
}

#[test]
fn a_provisional_grant_does_not_prove_that_a_write_has_arrived() {
    let claim = r#"e:"request",n:6,l:1,r:1,m:"EX","flags":["notify"],"client":"d"
        e:"claim",n:6,r:1,"claim_id":1
        e:"grant",n:6,l:1,m:"EX","provisional":true,"claim_id":1
        e:"refuse",n:6,r:1,"claim_id":1,"master":2
        e:"conflict",n:6,r:1,"claim_id":1
        e:"lost",n:6,l:1"#;
    let history = TWO_ON_THEIR_WAY.replace("NEXT", claim);
    assert_eq!(clean("lvb", &history).counts.lvb_reads, 1);
    let granted = r#"e:"request",n:6,l:1,r:1,m:"EX","client":"d"
        e:"grant",n:6,l:1,m:"EX"
        e:"unlock",n:6,l:1
        e:"complete",n:6,l:1,"status":65538"#;
    let history = TWO_ON_THEIR_WAY.replace("NEXT", granted);
    assert_eq!(broken(&history), ("lvb", vec![14, 16, 19]));
}

#[test]
fn an_unlock_proves_that_its_locks_earlier_write_has_arrived() {
    let under_way = r#"
        e:"begin"
        e:"request",n:2,l:1,r:1,m:"NL"
        e:"grant",n:2,l:1,m:"NL"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        e:"convert",n:1,l:1,m:"NL","flags":["valblk"],"lvb":"0a"
        e:"grant",n:1,l:1,m:"NL"
        e:"unlock",n:1,l:1
        e:"complete",n:1,l:1,"status":65538
        e:"convert",n:2,l:1,m:"CR","flags":["valblk"]
        e:"grant",n:2,l:1,m:"CR","lvb":"09""#;
    assert_eq!(broken(under_way), ("lvb", vec![6, 10, 11]));
    clean("lvb", &under_way.replace(r#"e:"complete",n:1,l:1,"status":65538"#, r#"e:"fault""#));
}

#[test]
fn a_client_that_dies_while_it_waits_to_write_may_invalidate_the_value_block_later() {
    let alive = r#"
        e:"begin"
        e:"request",n:2,l:1,r:1,m:"EX"
        e:"grant",n:2,l:1,m:"EX"
        e:"request",n:1,l:1,r:1,m:"PW","client":"c"
        e:"GONE"
        e:"convert",n:2,l:1,m:"NL","flags":["valblk"],"lvb":"07"
        e:"grant",n:2,l:1,m:"NL"
        e:"convert",n:2,l:1,m:"PR","flags":["valblk"]
        e:"grant",n:2,l:1,m:"PR","lvb":"07","sb_flags":["valnotvalid"]"#;
    clean("lvb", &alive.replace("e:\"GONE\"", "e:\"gone\",n:1,\"client\":\"c\""));
    let nobody = alive.replace("e:\"GONE\"", "e:\"fault\"");
    assert_eq!(broken(&nobody), ("lvb", vec![6, 8, 9]));
}

#[test]
fn a_conversion_makes_a_lock_persistent_or_ends_that() {
    let orphaned = r#"
        e:"begin"
        e:"request",n:2,l:1,r:1,m:"NL"
        e:"grant",n:2,l:1,m:"NL"
        e:"request",n:1,l:1,r:1,m:"CR","client":"c"FIRST
        e:"grant",n:1,l:1,m:"CR"
        e:"convert",n:1,l:1,m:"PW","flags":["valblk"THEN]
        e:"grant",n:1,l:1,m:"PW"
        e:"convert",n:1,l:1,m:"PW","flags":["valblk"THEN],"lvb":"07"
        e:"grant",n:1,l:1,m:"PW"
        e:"gone",n:1,"client":"c"
        e:"convert",n:2,l:1,m:"PR","flags":["valblk"]
        e:"grant",n:2,l:1,m:"PR","lvb":"07""#;
    let becomes = orphaned.replace("FIRST", "").replace("THEN", r#","persistent""#);
    clean("lvb", &becomes);
    let ends = orphaned.replace("FIRST", r#","flags":["persistent"]"#).replace("THEN", "");
    assert_eq!(broken(&ends).0, "lvb");
}

#[test]
fn a_dead_clients_request_may_reach_the_resource_after_all_other_locks_have_gone() {
    let alive = r#"
        e:"begin"
        e:"request",n:1,l:1,r:1,m:"PW","client":"c"
        e:"GONE"
        e:"request",n:2,l:1,r:1,m:"EX"
        e:"grant",n:2,l:1,m:"EX"
        e:"convert",n:2,l:1,m:"NL","flags":["valblk"],"lvb":"07"
        e:"grant",n:2,l:1,m:"NL"
        e:"convert",n:2,l:1,m:"PR","flags":["valblk"]
        e:"grant",n:2,l:1,m:"PR","lvb":"07","sb_flags":["valnotvalid"]"#;
    clean("lvb", &alive.replace("e:\"GONE\"", "e:\"gone\",n:1,\"client\":\"c\""));
    let nobody = alive.replace("e:\"GONE\"", "e:\"fault\"");
    assert_eq!(broken(&nobody), ("lvb", vec![6, 8, 9]));
}

#[test]
fn a_client_that_dies_with_a_writing_lock_invalidates_the_value_block() {
    let history = r#"
        e:"request",n:2,l:1,r:1,m:"NL"
        e:"grant",n:2,l:1,m:"NL"
        e:"request",n:1,l:1,r:1,m:"PW","client":"c"
        e:"grant",n:1,l:1,m:"PW"
        e:"convert",n:2,l:1,m:"PR","flags":["valblk"]
        e:"convert",n:1,l:1,m:"PW","flags":["valblk"],"lvb":"07"
        e:"grant",n:1,l:1,m:"PW"
        e:"gone",n:1,"client":"c"
        e:"grant",n:2,l:1,m:"PR","lvb":"07""#;
    assert_eq!(broken(history), ("lvb", vec![8, 5, 9]));
    clean("lvb", &(history.to_owned() + r#","sb_flags":["valnotvalid"]"#));
}

const QUEUE: &str = r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        e:"request",n:2,l:3,r:1,m:"NL"
        e:"grant",n:2,l:3,m:"NL"
        e:"request",n:2,l:1,r:1,m:"EX"
        e:"request",n:2,l:2,r:1,m:"PR"
        e:"convert",n:1,l:1,m:"NL"
        e:"grant",n:1,l:1,m:"NL"
"#;

#[test]
fn grants_in_order_are_clean() {
    let rest = r#"
        e:"grant",n:2,l:1,m:"EX"
        e:"unlock",n:2,l:1
        e:"complete",n:2,l:1,"status":65538
        e:"grant",n:2,l:2,m:"PR"
        "#;
    let report = clean("order", &(QUEUE.to_owned() + rest));
    assert_eq!(report.counts.order_judged, 2);
}

#[test]
fn overtaking_in_the_queue_is_found() {
    let overtakes = QUEUE.to_owned() + r#"e:"grant",n:2,l:2,m:"PR""#;
    assert_eq!(broken(&overtakes), ("order", vec![5, 6, 9]));
    // Another node's requests may have reached the master later.
    clean(
        "order",
        &overtakes
            .replace("e:\"request\",n:2,l:2", "e:\"request\",n:3,l:2")
            .replace("e:\"grant\",n:2,l:2", "e:\"grant\",n:3,l:2"),
    );
    // A node that was granted nothing there may have asked a former master first.
    let knows = "        e:\"grant\",n:2,l:3,m:\"NL\"\n";
    clean("order", &overtakes.replace(knows, ""));
    // So may one whose master has let go of everything: a lock may be gone when its unlock is called.
    let moved = r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        e:"unlock",n:1,l:1
        e:"request",n:3,l:1,r:1,m:"NL"
        e:"grant",n:3,l:1,m:"NL"
        e:"complete",n:1,l:1,"status":65538
        e:"request",n:1,l:2,r:1,m:"EX"
        e:"request",n:1,l:3,r:1,m:"PR"
        e:"grant",n:1,l:3,m:"PR"
        "#;
    clean("order", moved);
    // Its caller may overtake.
    let unordered = overtakes.replace("m:\"PR\"\n", "m:\"PR\",\"flags\":[\"noorder\"]\n");
    clean("order", &unordered);
    // A new master does not know the order.
    clean(
        "order",
        &(QUEUE.to_owned() + "e:\"view\",n:2,\"view\":2\n" + r#"e:"grant",n:2,l:2,m:"PR""#),
    );
}

#[test]
fn a_queued_conversion_that_overtakes_is_found() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"NL"
        e:"grant",n:1,l:1,m:"NL"
        e:"request",n:1,l:2,r:1,m:"NL"
        e:"grant",n:1,l:2,m:"NL"
        e:"convert",n:1,l:1,m:"EX","flags":["quecvt"]
        e:"convert",n:1,l:2,m:"PR","flags":["quecvt"]
        e:"grant",n:1,l:2,m:"PR"
        "#;
    assert_eq!(broken(history), ("order", vec![5, 6, 7]));
    // Without QUECVT, a conversion that can be granted at once overtakes rightly.
    let in_place = history.replace("\"PR\",\"flags\":[\"quecvt\"]", "\"PR\"");
    clean("order", &in_place);
}

#[test]
fn tokens_that_grow_are_clean() {
    let report = clean(
        "fencing",
        r#"
        e:"request",n:1,l:1,r:1,m:"EX","flags":["notify"]
        e:"grant",n:1,l:1,m:"EX","token":90,"provisional":true
        e:"settled",n:1,l:1,"token":5
        e:"unlock",n:1,l:1
        e:"request",n:2,l:1,r:1,m:"PW"
        e:"complete",n:1,l:1,"status":65538
        e:"grant",n:2,l:1,m:"PW","token":6
        "#,
    );
    assert_eq!(report.counts.tokens, 2);
}

/// Two lives in two views, the later one first in the file: its clock was behind. Tokens are put for A and B.
const TWO_LIVES: &str = r#"
        e:"view",n:2,"incarnation":9,"view":7,"members":[{"node":2,"incarnation":9}]
        e:"request",n:2,"incarnation":9,l:1,r:1,m:"EX"
        e:"grant",n:2,"incarnation":9,l:1,m:"EX","token":B
        e:"unlock",n:2,"incarnation":9,l:1
        e:"complete",n:2,"incarnation":9,l:1,"status":65538
        e:"view",n:1,"incarnation":8,"view":6,"members":[{"node":1,"incarnation":8}]
        e:"request",n:1,"incarnation":8,l:1,r:1,m:"PW"
        e:"grant",n:1,"incarnation":8,l:1,m:"PW","token":A
        "#;

#[test]
fn a_token_of_an_earlier_life_is_smaller_whatever_clocks_say() {
    let tokens = |a: &str, b: &str| TWO_LIVES.replace(":A", a).replace(":B", b);
    assert_eq!(broken(&tokens(":6", ":5")), ("lives", vec![3, 8]));
    // Of one node, too: its former life cannot have been given more than the next one.
    let one_node = tokens(":6", ":5").replace("n:2", "n:1").replace("\"node\":2", "\"node\":1");
    assert_eq!(broken(&one_node), ("lives", vec![3, 8]));
}

#[test]
fn lives_in_the_same_views_are_ordered_by_their_grants_only() {
    let both = r#"[{"node":1,"incarnation":8},{"node":2,"incarnation":9}]"#;
    let history = TWO_LIVES
        .replace(":A", ":6")
        .replace(":B", ":5")
        .replace(r#"[{"node":2,"incarnation":9}]"#, both);
    clean("lives", &history);
    // Nothing is known of lives that no view names.
    clean("lives", &history.replace(r#""node":1,"incarnation":8}"#, r#""node":1}"#));
}

#[test]
fn a_token_that_does_not_grow_is_found() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX","token":6
        e:"unlock",n:1,l:1
        e:"complete",n:1,l:1,"status":65538
        e:"request",n:2,l:1,r:1,m:"PW"
        e:"grant",n:2,l:1,m:"PW","token":6
        "#;
    assert_eq!(broken(history), ("fencing", vec![2, 6]));
    assert_eq!(
        broken(&history.replace("PW\",\"token\":6", "PW\",\"token\":0")),
        ("fencing", vec![6])
    );
    let settled = history.replace("PW\",\"token\":6", "PW\",\"provisional\":true")
        + "e:\"settled\",n:2,l:1,\"token\":4";
    assert_eq!(broken(&settled), ("fencing", vec![2, 7]));
}

#[test]
fn everything_completes_or_waits_for_a_holder() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        e:"request",n:2,l:1,r:1,m:"PR"
        e:"end"
        "#;
    assert_eq!(clean("progress", history).counts.blocked_at_end, 1);
}

#[test]
fn what_nobody_blocks_must_complete() {
    let history = r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        e:"request",n:2,l:1,r:1,m:"PR"
        e:"unlock",n:1,l:1
        e:"complete",n:1,l:1,"status":65538
        e:"end"
        "#;
    assert_eq!(broken(history), ("progress", vec![3]));
    let unlock = history.replace("        e:\"complete\",n:1,l:1,\"status\":65538\n", "");
    assert_eq!(check(&unlock).violated, 2);
}

#[test]
fn rules_without_their_fields_are_named() {
    let report = check(
        r#"
        e:"request",n:1,l:1,r:1,m:"EX"
        e:"grant",n:1,l:1,m:"EX"
        "#,
    );
    assert_eq!(report.checked, ["compatible_grants", "completion_once", "order"]);
    let text = report.to_string();
    for expect in [
        "not checked: one_master: the history has no `master` events",
        "not checked: claims_end: the history has no `claim` events and no `end` event",
        "not checked: fencing: the history has no `token` on grants of PW or EX",
        "not checked: compatible_grants: whether provisional grants were left at the end: the history has no `end` event",
        "not checked: progress: the history has no `end` event",
    ] {
        assert!(text.contains(expect), "{expect}\nis missing in\n{text}");
    }
}

#[test]
fn what_a_writer_declares_counts_as_recorded() {
    let report = check(
        r#"
        e:"begin","writes":["claim","master","barrier","token"]
        e:"request",n:1,l:1,r:1,m:"PR"
        e:"grant",n:1,l:1,m:"PR"
        e:"end"
        "#,
    );
    assert!(
        ["one_master", "claims_end", "barrier", "fencing", "lives"]
            .iter()
            .all(|rule| report.checked.contains(rule))
    );
}

const CROSSED: &str = r#"
    e:"begin","writes":["request","grant","deadlock"]
    e:"request",n:1,l:1,"client":"a",r:"x",m:"EX"
    e:"grant",n:1,l:1,m:"EX"
    e:"request",n:2,l:1,"client":"b",r:"y",m:"EX"
    e:"grant",n:2,l:1,m:"EX"
    e:"request",n:1,l:2,"client":"a",r:"y",m:"PR"
    e:"request",n:2,l:2,"client":"b",r:"x",m:"EX"
"#;

#[test]
fn a_victim_of_a_deadlock_was_in_one() {
    let now = format!("{CROSSED}\n e:\"complete\",n:2,l:2,\"status\":-35");
    let text =
        now.replace("r:\"x\"", "\"resource\":\"x\"").replace("r:\"y\"", "\"resource\":\"y\"");
    assert_eq!(clean("deadlock", &text).counts.deadlocks, 1);
    // The other one gave up on its own, a moment before.
    let late = text.replace(
        "e:\"complete\",n:2",
        "e:\"unlock\",n:1,l:1\n e:\"complete\",n:1,l:2,\"status\":65537\n e:\"complete\",n:2",
    );
    clean("deadlock", &late);
}

#[test]
fn a_victim_that_waits_in_a_chain_is_found() {
    let chain = format!("{CROSSED}\n e:\"complete\",n:1,l:2,\"status\":35");
    let text =
        chain.replace("r:\"x\"", "\"resource\":\"x\"").replace("r:\"y\"", "\"resource\":\"y\"");
    let text =
        text.replace("\"client\":\"b\",\"resource\":\"x\"", "\"client\":\"b\",\"resource\":\"z\"");
    assert_eq!(broken(&text), ("deadlock", vec![6, 8]));
}

#[test]
fn a_victim_that_was_to_be_spared_is_found() {
    let text = format!("{CROSSED}\n e:\"complete\",n:2,l:2,\"status\":35")
        .replace("r:\"x\"", "\"resource\":\"x\"")
        .replace("r:\"y\"", "\"resource\":\"y\"")
        .replace(
            "\"client\":\"b\",\"resource\":\"x\",",
            "\"client\":\"b\",\"resource\":\"x\",\"flags\":[\"nodlckwt\"],",
        );
    assert_eq!(broken(&text), ("deadlock", vec![7, 8]));
}
