//! Parity at rest. At the end, all units of a stripe make zero by XOR, except where content is marked as
//! lost (docs/design/array.md 4). In a mirror, both copies are equal. The second parity of RAID-6 has no part in that sum. It is
//! that of the data units, each times a power of two, in the field of 256 elements by 0x11d. The checker has its own arithmetic.

use std::collections::BTreeMap;

use lockify_history::array::Redundancy;

use crate::array::report::Counts;
use crate::array::rules::{Found, Rule, Seen};
use crate::array::run::Dumped;

/// The product of two elements: that of polynomials with one bit for each coefficient, and its rest by 0x11d.
fn product(a: u8, b: u8) -> u8 {
    let long =
        (0..8).fold(0_u16, |long, bit| long ^ ((u16::from(a) << bit) * u16::from(b >> bit & 1)));
    (8..15).rev().fold(long, |rest, bit| rest ^ ((0x11d << (bit - 8)) * (rest >> bit & 1))) as u8
}

fn power_of_two(exponent: u64) -> u8 {
    (0..exponent).fold(1, |power, _| product(power, 2))
}

/// The redundancy fits.
#[derive(Clone, Copy, Debug)]
pub struct Parity;

impl Rule for Parity {
    fn name(&self) -> &'static str {
        "parity"
    }

    fn judge(&self, seen: &Seen<'_>, counts: &mut Counts) -> Found {
        let run = seen.run;
        if run.dumped.is_empty() {
            return Err("no `dump` events");
        }
        // A column: one block of each device of a group, by the group's first device.
        let mut columns: BTreeMap<(u16, u64), Vec<&Dumped>> = BTreeMap::new();
        for (&(device, block), dumped) in &run.dumped {
            let first = run.layout.first_of_group(device);
            columns.entry((first, block)).or_default().push(dumped);
        }
        let mut violations = Vec::new();
        for ((first, block), column) in columns {
            if column.len() < usize::from(run.layout.members()) {
                counts.columns_not_judged += 1;
                continue;
            }
            if column.iter().any(|dumped| dumped.lost) {
                counts.columns_lost += 1;
                continue;
            }
            counts.columns += 1;
            let stripe = run.layout.stripe(first, block);
            let length = column.iter().map(|d| d.bytes.len()).max().unwrap_or(0);
            let (mut sum, mut second) = (vec![0_u8; length], vec![0_u8; length]);
            for (device, dumped) in (first..).zip(&column) {
                let is_second = run.layout.has_second_parity(device, stripe);
                let unit = run.layout.data_unit(device, stripe);
                // Of the second sum: a data unit's factor, 1 for the second parity itself, and nothing of the first one.
                let factor = unit.map(power_of_two).or(is_second.then_some(1));
                for ((sum, second), byte) in sum.iter_mut().zip(&mut second).zip(&dumped.bytes) {
                    *sum ^= if is_second { 0 } else { *byte };
                    *second ^= factor.map_or(0, |factor| product(factor, *byte));
                }
            }
            let has_second = run.layout.redundancy == Redundancy::Raid6;
            let of = [("parity", &sum, true), ("the second parity", &second, has_second)];
            for (what, _, _) in of.iter().filter(|(_, sum, is)| *is && sum.iter().any(|b| *b != 0))
            {
                let lines = column.iter().map(|dumped| dumped.line).collect();
                let what =
                    format!("stripe {stripe}, block {block} of its devices: {what} does not fit");
                violations.push(seen.violation(self.name(), lines, what));
            }
        }
        Ok(violations)
    }
}
