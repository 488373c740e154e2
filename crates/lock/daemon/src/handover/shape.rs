//! The shape of the state that a restart hands over. Its encoding has no names, so only
//! [`VERSION`](super::VERSION) distinguishes one state from another.

use super::VERSION;
use crate::shard::ShardImage;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/state.txt");

#[test]
fn the_version_of_the_state_changes_with_it() {
    let types = lockify_shape::types_of::<ShardImage<'static>>();
    let types: Vec<String> = types.iter().map(ToString::to_string).collect();
    let shape = format!("version {VERSION}\n{}\n", types.join("\n"));
    let golden = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    if shape == golden {
        return;
    }
    let version = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let changed: Vec<&str> = shape.lines().filter(|l| !golden.lines().any(|g| g == *l)).collect();
    assert_ne!(
        version(&shape),
        version(&golden),
        "the state that a restart hands over has changed: make VERSION in handover/mod.rs another one \
         (docs/restart.md), then run this test with LOCKIFY_GOLDEN set. New or changed:\n{}",
        changed.join("\n")
    );
    assert!(
        std::env::var_os("LOCKIFY_GOLDEN").is_some(),
        "VERSION has changed: run this test with LOCKIFY_GOLDEN set, and look at what it writes"
    );
    std::fs::write(GOLDEN, shape).unwrap();
}
