//! The findings of a checker, for people and for programs.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::invariant::{Counts, Violation};

/// A rule, or a part of one, that was not judged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Off {
    /// The rule.
    pub rule: &'static str,
    /// Which part of it; all of it if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<&'static str>,
    /// The reason why the rule is switched off.
    pub reason: String,
}

/// The result of a check. The counts differ between histories of locks and of arrays.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report<C = Counts> {
    /// How many violations were found.
    pub violated: u64,
    /// The first of them.
    pub violations: Vec<Violation>,
    /// The rules that were judged.
    pub checked: Vec<&'static str>,
    /// The rules, and parts of rules, that were not.
    pub off: Vec<Off>,
    /// The counts of the history.
    pub counts: C,
}

impl<C> Report<C> {
    /// Nothing was violated.
    pub fn is_clean(&self) -> bool {
        self.violated == 0
    }
}

impl<C: Serialize> Report<C> {
    /// The report as one JSON object.
    pub fn json(&self) -> String {
        // Only maps with keys that are no strings, and foreign Serialize impls, can fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl<C: fmt::Display> fmt::Display for Report<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for v in &self.violations {
            writeln!(f, "VIOLATED {}, {}: {}", v.rule, lines(&v.lines), v.what)?;
        }
        let more = self.violated - self.violations.len() as u64;
        if more > 0 {
            writeln!(f, "… and {more} more violations")?;
        }
        writeln!(f, "{}", self.counts)?;
        writeln!(f, "rules checked: {}", self.checked.join(", "))?;
        for off in &self.off {
            match off.part {
                None => writeln!(f, "not checked: {}: {}", off.rule, off.reason)?,
                Some(part) => writeln!(f, "not checked: {}: {part}: {}", off.rule, off.reason)?,
            }
        }
        match self.violated {
            0 => writeln!(f, "clean"),
            1 => writeln!(f, "1 violation"),
            n => writeln!(f, "{n} violations"),
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events: {} requests, {} grants", self.events, self.requests, self.grants)?;
        let named = [
            (self.provisional, "provisional"),
            (self.provisional_overlaps, "provisional overlaps"),
            (self.claims, "claims"),
            (self.refusals, "refusals"),
            (self.merges, "merges"),
            (self.conflicts, "conflicts"),
            (self.resends, "resends"),
            (self.barrier_waits, "barrier waits"),
            (self.lost, "locks lost"),
            (self.crashes, "crashes"),
            (self.lvb_reads, "value block reads judged"),
            (self.tokens, "fencing tokens judged"),
            (self.tokens_forgotten, "fencing tokens forgotten"),
            (self.order_judged, "grants judged for order"),
            (self.deadlocks, "requests ended as deadlocks"),
            (self.blocked_at_end, "operations blocked by a held lock at the end"),
        ];
        named
            .into_iter()
            .filter(|(n, _)| *n > 0)
            .try_for_each(|(n, name)| write!(f, ", {n} {name}"))
    }
}

fn lines(lines: &[u64]) -> String {
    let mut text = String::from(if lines.len() == 1 { "line " } else { "lines " });
    for (i, line) in lines.iter().enumerate() {
        let _ = write!(text, "{}{line}", if i == 0 { "" } else { ", " });
    }
    text
}
