//! Small libraries in C that stand before the C library's in a process that a test starts.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `tests/it/common/SOURCE` into a library in this folder.
pub fn library(folder: &Path, name: &str, source: &str) -> PathBuf {
    let library = folder.join(format!("{name}.so"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/common").join(source);
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-O1", "-o"])
        .args([&library, &source])
        .status()
        .expect("these tests need a C compiler: apt-get install gcc libc6-dev");
    assert!(compiled.success());
    library
}
