//! A trace of a run that a person can read, kept in a ring.

use crate::{Nanos, SECOND};
use std::collections::VecDeque;
use std::fmt;

/// The last lines of a run. Lines are made by closures that do not run while the trace is off.
#[derive(Debug, Default)]
pub struct Trace {
    lines: VecDeque<String>,
    capacity: usize,
    total: u64,
}

impl Trace {
    /// Keeps the last `capacity` lines; 0 switches the trace off.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { lines: VecDeque::new(), capacity, total: 0 }
    }

    /// Returns true if lines are kept.
    pub fn is_on(&self) -> bool {
        self.capacity > 0
    }

    /// The lines that are still there, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// Number of lines written, including those that the ring has overwritten.
    pub fn total(&self) -> u64 {
        self.total
    }

    #[inline]
    pub(crate) fn line(
        &mut self,
        at: Nanos,
        who: impl fmt::Display,
        text: impl FnOnce() -> String,
    ) {
        if self.is_on() {
            self.push(at, &who, &text());
        }
    }

    fn push(&mut self, at: Nanos, who: &dyn fmt::Display, text: &str) {
        if self.lines.len() == self.capacity {
            self.lines.pop_front();
        }
        let (seconds, nanos) = (at / SECOND, at % SECOND);
        // Formatted first: padding applies to a string, not to a Display that writes in parts.
        let who = who.to_string();
        self.lines.push_back(format!("{seconds:>5}.{nanos:09}  {who:<8} {text}"));
        self.total += 1;
    }
}

impl Drop for Trace {
    /// A machine that panics takes its cluster with it; what led to the panic is printed first.
    fn drop(&mut self) {
        if self.is_on() && std::thread::panicking() {
            eprint!("{self}");
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = self.total - self.lines.len() as u64;
        if dropped > 0 {
            writeln!(f, "... {dropped} earlier lines not kept")?;
        }
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_keeps_the_last_lines_and_counts_the_others() {
        let mut trace = Trace::new(2);
        for i in 0..5u64 {
            trace.line(i * SECOND + 7, format_args!("n{i}"), || format!("line {i}"));
        }
        assert_eq!(trace.total(), 5);
        let text = trace.to_string();
        assert_eq!(
            text,
            "... 3 earlier lines not kept\n    3.000000007  n3       line 3\n    4.000000007  n4       line 4\n"
        );
    }

    #[test]
    fn off_runs_no_closure() {
        let mut trace = Trace::default();
        trace.line(1, "n1", || panic!("must not be called"));
        assert_eq!(trace.total(), 0);
    }
}
