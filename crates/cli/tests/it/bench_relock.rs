//! `lockify bench relock`: the lab runs it in a node, beside the kernel's lock manager.

use std::process::{Command, Output};

use crate::common::output;

fn relock(seconds: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockify"));
    output(command.args(["bench", "relock", seconds]))
}

#[test]
fn three_figures_are_printed() {
    let out = relock("0.1");
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    let figures: Vec<f64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let &[per_second, median, tail] = figures.as_slice() else { panic!("{text}") };
    assert!(text.ends_with('\n') && text.lines().count() == 1, "{text}");
    assert!(per_second > 0.0 && 0.0 < median && median <= tail, "{text}");
    // Pairs come one after the other: half of them take at least the median.
    assert!(per_second * median / 2.0 <= 1.1e6, "{text}");
}

#[test]
fn a_length_that_is_none_is_refused() {
    for (seconds, code, why) in
        [("x", 2, "invalid float"), ("nan", 2, "cannot"), ("1e300", 2, "cannot")]
    {
        let out = relock(seconds);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{seconds}: {said}");
        assert!(said.contains(why), "{seconds}: {said}");
    }
}
