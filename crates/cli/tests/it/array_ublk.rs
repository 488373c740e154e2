//! Exports by ublk where there is none. The lab has the others (`labs/kernels/tests/test_ublk.py`).

use std::path::Path;

use crate::common::array::Array;
use crate::common::{code, stderr};

#[test]
fn an_export_without_ublk_says_what_is_missing() {
    if Path::new("/dev/ublk-control").exists() && cfg!(feature = "ublk") {
        return;
    }
    let array = Array::create(3, &[]);
    let output = array.user.lockify(&["array", "export", &array.file(), "--ublk", "3"]);
    let wanted = match cfg!(feature = "ublk") {
        true => "/dev/ublk-control is missing: this kernel has no ublk",
        false => "this lockify was built without ublk",
    };
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    for odd in [&["--ublk", "x"][..], &["--ublk", "1048576"], &["--ublk-discard"]] {
        let output = array.user.lockify(&[&["array", "export", &array.file()], odd].concat());
        assert_eq!(code(&output), 2, "{odd:?}: {}", stderr(&output));
    }
}
