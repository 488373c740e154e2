//! Programs that tests make.
//!
//! Another process writes them. Here, another thread may be starting a process, which has all open files of this one until it
//! runs. A program that somebody may still write cannot be run (ETXTBSY).

use std::path::Path;
use std::process::Command;

/// Copies a file, with its mode.
pub fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-p").args([from, to]).status().unwrap();
    assert!(copied.success(), "{} is not copied to {}", from.display(), to.display());
}

/// Makes a script, with this mode.
pub fn script(path: &Path, text: &str, mode: u32) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    let mode = format!("--mode={mode:o}");
    let made = Command::new("install").arg(mode).args([&draft, path]).status().unwrap();
    assert!(made.success(), "{} is not made", path.display());
}
