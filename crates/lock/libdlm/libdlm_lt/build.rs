//! Gives the library the name that programs for libdlm ask the loader for.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdlm_lt.so.3");
    println!("cargo::rerun-if-changed=build.rs");
}
