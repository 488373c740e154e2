//! For tests that print tables: `cargo test` shows these only for tests without the standard harness.

/// Returns true if the command line asks for the test of this name: it has no filter, or a matching
/// one.
pub fn is_wanted(name: &str) -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{name}: test");
        return false;
    }
    let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
    filters.peek().is_none() || filters.any(|filter| name.contains(filter.as_str()))
}
