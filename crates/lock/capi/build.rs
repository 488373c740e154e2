//! Gives the library its versioned name.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liblockify.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
