//! Progress of long work: shown on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of so many steps.
pub fn bar(steps: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} ({elapsed}, {eta} left)");
    // The template is a constant; if it were wrong, the default bar would do.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar
}
