//! The server's state from its log, and as a snapshot that replaces the log.

use std::collections::BTreeSet;

use super::LockServer;
use super::journal::Entry;
use super::message::LockRange;
use crate::Life;

impl LockServer {
    pub(super) fn replay(&mut self, entry: Entry) {
        match entry {
            Entry::Started { incarnation } => self.incarnation = incarnation,
            // A copy of the whole table has it, and the entry itself comes behind.
            Entry::Granted { op, .. } if self.table.order_of(op).is_some() => {}
            Entry::Granted { op, ranges, past } => {
                let Some(&(last, _)) = ranges.last() else { return };
                let all: Vec<LockRange> = ranges.iter().map(|&(_, range)| range).collect();
                let kept: BTreeSet<u16> = ranges.iter().map(|&(index, _)| index).collect();
                // Parts keep their numbers; those that were given back before a snapshot leave gaps.
                let mut padded = vec![all[0]; usize::from(last) + 1];
                for &(index, range) in &ranges {
                    if let Some(slot) = padded.get_mut(usize::from(index)) {
                        *slot = range;
                    }
                }
                let order = self.table.add(op, &padded, past, false, true);
                for index in (0..=last).filter(|index| !kept.contains(index)) {
                    self.table.remove_part(order, index);
                }
            }
            Entry::Freed { op } => {
                if let Some(order) = self.table.order_of(op) {
                    self.table.remove(order);
                }
            }
            Entry::PartFreed { part } => {
                if let Some(order) = self.table.order_of(part.op) {
                    self.table.remove_part(order, part.index);
                }
            }
            Entry::PartShared { part } => {
                if let Some(order) = self.table.order_of(part.op) {
                    self.table.set_shared(order, part.index);
                }
            }
            Entry::Fenced { life } => {
                self.raise(life);
                self.uncleared.insert(life);
            }
            Entry::Cleared { life } => {
                self.uncleared.remove(&life);
                for order in self.orders_of(life) {
                    self.table.remove(order);
                }
            }
            Entry::Floor { host, incarnation } => self.raise(Life { host, incarnation }),
            Entry::Newest { time } => self.newest = self.newest.max(time),
            Entry::Key { .. } => {}
        }
    }

    pub(super) fn snapshot(&self) -> Vec<Entry> {
        let mut entries = vec![Entry::Started { incarnation: self.incarnation }];
        entries.extend(
            self.fenced.iter().map(|(&host, &incarnation)| Entry::Floor { host, incarnation }),
        );
        entries.push(Entry::Newest { time: self.newest });
        entries.extend(self.keys.iter().map(|&(server, key)| Entry::Key { server, key }));
        entries.extend(self.uncleared.iter().map(|&life| Entry::Fenced { life }));
        entries.extend(self.table.iter().filter(|(_, r)| r.granted).map(|(_, request)| {
            let ranges = request.parts.iter().enumerate();
            Entry::Granted {
                op: request.op,
                ranges: ranges
                    .filter_map(|(i, part)| part.as_ref().map(|p| (i as u16, p.range)))
                    .collect(),
                past: request.past.clone(),
            }
        }));
        entries
    }
}
