//! Timestamp ordering. The order of timestamps is a serial order. A write is dropped only where a newer one is
//! (docs/design/array.md 2.4).

use crate::array::report::Counts;
use crate::array::rules::{Found, Rule, Seen};

/// Conflicts follow timestamps.
#[derive(Clone, Copy, Debug)]
pub struct TimestampOrder;

impl Rule for TimestampOrder {
    fn name(&self) -> &'static str {
        "timestamp_order"
    }

    fn judge(&self, seen: &Seen<'_>, _: &mut Counts) -> Found {
        if seen.run.scheme != "timestamp-ordering" {
            return Err("the scheme is another");
        }
        if seen.graph.nodes.iter().all(|node| node.stamp.is_none()) {
            return Err("no `stamp` in `try` events");
        }
        if seen.run.may_lose_writes() {
            return Err("devices do not say which writes they have lost");
        }
        let mut violations = Vec::new();
        for (&(from, to), why) in &seen.graph.edges {
            let stamp = |id: u32| seen.graph.nodes[id as usize].stamp;
            let (Some(earlier), Some(later)) = (stamp(from), stamp(to)) else { continue };
            if earlier > later {
                let (device, block) = why.at;
                let what = format!(
                    "device {device} block {block}: {} at {earlier:?} came before {} at {later:?}",
                    seen.graph.name(seen.run, from),
                    seen.graph.name(seen.run, to),
                );
                violations.push(seen.violation(self.name(), why.lines.to_vec(), what));
            }
        }
        for &(device, block, line) in &seen.graph.wrong_drops {
            let what = format!(
                "device {device} block {block}: a write was dropped, and nothing newer is there"
            );
            violations.push(seen.violation(self.name(), vec![line], what));
        }
        Ok(violations)
    }
}
