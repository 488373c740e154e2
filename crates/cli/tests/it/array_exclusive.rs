//! Exports that have an array for themselves.

use std::process::Output;

use crate::common::array::Array;
use crate::common::relay::Place;
use crate::common::{code, stderr, wait_for};

/// An export that is not to begin.
fn refused(array: &Array, more: &[&str]) -> Output {
    let (file, socket) = (array.file(), array.user.dir().join("refused"));
    let args = ["array", "export", &file, "--socket", socket.to_str().unwrap()];
    let output = array.user.lockify(&[&args[..], more].concat());
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    output
}

#[test]
fn an_exclusive_export_is_alone_until_it_is_gone() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let mut first = array.export_with(1, &["--exclusive"]);
    for more in [&[][..], &["--exclusive"]] {
        let why = stderr(&refused(&array, more));
        assert!(why.contains("host 1 on node"), "{why}");
    }
    let shared = stderr(&refused(&array, &[]));
    assert!(shared.contains("has the array for itself (--exclusive)"), "{shared}");
    // Work on all stripes disturbs nobody.
    array.assert_clean();
    first.process.kill();
    let why = stderr(&refused(&array, &["--exclusive"]));
    assert!(why.contains("`lockify array fence --host 1`"), "{why}");
    assert_eq!(code(&array.lockify("fence", &["--host", "1"])), 0);
    let mut second = array.export_with(2, &["--exclusive"]);
    // One that ends in order leaves nothing to be fenced.
    assert_eq!(second.process.end(), Some(0));
    let _shared = array.export(3);
    let why = stderr(&refused(&array, &["--exclusive"]));
    assert!(why.contains("uses the array, which is to be exclusive"), "{why}");
    let _beside = array.export(4);
    wait_for(|| array.log(Place::Host(4)).contains("may use the array at the same time"));
    assert!(!array.log(Place::Host(3)).contains("at the same time"));
}

#[test]
fn a_killed_exclusive_export_comes_back_with_its_state() {
    let mut array = Array::create(3, &[]);
    array.start_all();
    let state = array.user.dir().join("state");
    let more = ["--exclusive", "--state", state.to_str().unwrap()];
    let mut export = array.export_with(1, &more);
    export.process.kill();
    let mut export = array.export_with(2, &more);
    assert_eq!(export.process.end(), Some(0));
}
