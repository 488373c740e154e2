//! The paper's load: hosts' operations and their times (Table 1; docs/design/array.md 5.1).

use std::str::FromStr;

use bytes::Bytes;
use lockify_array::{Layout, Redundancy, Span, Work};
use lockify_sim::{Delay, MILLISECOND, Nanos, Random};
use rand::RngExt as _;

use crate::profile::BLOCK_BYTES;

/// Data units of a stripe, beside the parity.
pub const DATA_UNITS: u16 = 4;

/// Stripe units on each device.
pub const UNITS_PER_DEVICE: u64 = 1000;

/// Sources of operations on each host. They do not wait for answers. 3 every 80 ms from each of 16 hosts are the
/// published 600 operations per second, whatever the protocol. Sources that wait would make 146.
pub const SOURCES: u32 = 3;

/// Operations per second of one host.
pub const PER_HOST: f64 = SOURCES as f64 / 0.08;

/// Time between two operations of a source. "Variance 10 ms" is read as the deviation.
pub fn think() -> Delay {
    Delay::Normal { mean: 80 * MILLISECOND, deviation: 10 * MILLISECOND }
}

/// Where operations begin and end; not published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alignment {
    /// Within one stripe.
    Stripe,
    /// At any unit.
    Free,
}

impl Alignment {
    /// Both alignments.
    pub const ALL: [Alignment; 2] = [Alignment::Stripe, Alignment::Free];

    /// Its name in results and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Alignment::Stripe => "stripe",
            Alignment::Free => "free",
        }
    }

    /// For a title.
    pub fn describe(self) -> &'static str {
        match self {
            Alignment::Stripe => "within one stripe",
            Alignment::Free => "at any unit",
        }
    }

    /// True if half a stripe is written by read-modify-write. The paper does not say so. Its published messages imply
    /// 1.25 devices per write that are read and written (docs/design/array.md 5.5). Both rules give that then.
    pub fn delta_at_half(self) -> bool {
        self == Alignment::Stripe
    }
}

/// How the paper's "access size uniformly varies between 1 and 4 stripe units" becomes whole units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// Each number of units is equally likely.
    Equal,
    /// A uniform length is rounded to whole units: the least and the most are half as likely as the others.
    Rounded,
}

impl Sizes {
    /// The units of an operation, from one up to `most`.
    fn draw(self, most: u64, random: &mut Random) -> u64 {
        match self {
            Sizes::Equal => random.random_range(1..=most),
            Sizes::Rounded => random.random_range(2..2 * most).div_ceil(2),
        }
    }
}

/// When a host's operations come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrivals {
    /// Each source keeps its own time.
    Apart,
    /// A host's sources begin operations at the same time, and think at the same time.
    Together,
}

/// There is no such rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no alignment \"{0}\"; there are stripe and free")]
pub struct UnknownAlignment(pub String);

impl FromStr for Alignment {
    type Err = UnknownAlignment;

    fn from_str(name: &str) -> Result<Self, UnknownAlignment> {
        let found = Alignment::ALL.into_iter().find(|alignment| alignment.name() == name);
        found.ok_or_else(|| UnknownAlignment(name.to_owned()))
    }
}

/// The array of the experiments: one block per unit. Devices are in groups of five; nothing if that does not come out even.
pub fn layout(devices: u16) -> Option<Layout> {
    let groups = devices / (DATA_UNITS + 1);
    let layout = Layout {
        redundancy: Redundancy::Raid5,
        data: DATA_UNITS,
        groups,
        unit: 1,
        block_size: BLOCK_BYTES,
        stripes: UNITS_PER_DEVICE * u64::from(groups),
        added: Default::default(),
    };
    (layout.check().is_ok() && layout.devices() == devices).then_some(layout)
}

/// The mix of hosts' operations.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mix {
    /// Share of reads.
    pub reads: f64,
    /// Share of the array that is used, from its first stripe on: the smaller, the more conflicts.
    pub used: f64,
    /// Where operations begin and end.
    pub alignment: Alignment,
    /// How long they are.
    pub sizes: Sizes,
}

impl Mix {
    /// Table 1's.
    pub fn table_1(alignment: Alignment) -> Mix {
        Mix { reads: 0.7, used: 1.0, alignment, sizes: Sizes::Equal }
    }

    /// The next operation: from 1 to 4 units, read or written.
    pub fn draw(&self, layout: &Layout, random: &mut Random) -> Work {
        let data = u64::from(layout.data);
        let stripes = ((layout.stripes as f64 * self.used).ceil() as u64).clamp(1, layout.stripes);
        let count = self.sizes.draw(data, random);
        let start = match self.alignment {
            Alignment::Stripe => {
                random.random_range(0..stripes) * data + random.random_range(0..=data - count)
            }
            Alignment::Free => random.random_range(0..=stripes * data - count),
        };
        let span = Span { start, count };
        if random.random_bool(self.reads.clamp(0.0, 1.0)) {
            return Work::Read { span };
        }
        let mut data = vec![0; (count * u64::from(layout.block_size)) as usize];
        random.fill(&mut data[..]);
        Work::Write { span, data: Bytes::from(data) }
    }
}

/// When a source begins, so that hosts do not all begin at once.
pub fn first(random: &mut Random) -> Nanos {
    random.random_range(0..80 * MILLISECOND)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    fn spans(mix: Mix, layout: &Layout) -> impl Iterator<Item = Span> + use<> {
        let mut random = Random::seed_from_u64(5);
        let layout = *layout;
        (0..20_000).map(move |_| match mix.draw(&layout, &mut random) {
            Work::Read { span } | Work::Write { span, .. } => span,
            work => unreachable!("{work:?}"),
        })
    }

    #[test]
    fn operations_keep_to_their_stripe_or_do_not() {
        let layout = layout(20).unwrap();
        let crossing = |alignment| {
            let crosses = |span: &Span| span.start / 4 != (span.end() - 1) / 4;
            spans(Mix::table_1(alignment), &layout).filter(crosses).count() as f64 / 20_000.0
        };
        assert_eq!(crossing(Alignment::Stripe), 0.0);
        // Of 1 to 4 units none, one, two or three of four places cross.
        assert!((crossing(Alignment::Free) - 6.0 / 16.0).abs() < 0.02);
    }

    #[test]
    fn lengths_are_equally_likely_or_rounded() {
        let shares = |sizes| {
            let mix = Mix { sizes, ..Mix::table_1(Alignment::Stripe) };
            let mut shares = [0.0; 4];
            let all = spans(mix, &layout(20).unwrap());
            all.for_each(|span| shares[span.count as usize - 1] += 6.0 / 20_000.0);
            shares
        };
        let near = |found: [f64; 4], wanted: [f64; 4]| {
            assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 0.1), "{found:?}");
        };
        near(shares(Sizes::Equal), [1.5; 4]);
        near(shares(Sizes::Rounded), [1.0, 2.0, 2.0, 1.0]);
    }

    #[test]
    fn a_part_of_the_array_is_used_and_all_of_it() {
        let layout = layout(20).unwrap();
        for alignment in Alignment::ALL {
            let mix = Mix { used: 0.02, ..Mix::table_1(alignment) };
            let ends: std::collections::BTreeSet<u64> =
                spans(mix, &layout).map(|span| span.end()).collect();
            assert!(ends.len() >= 319, "{alignment:?}: {}", ends.len());
            assert_eq!(ends.last(), Some(&320), "{alignment:?}: 80 stripes of 4 units");
        }
    }

    #[test]
    fn an_array_needs_whole_groups() {
        assert_eq!(layout(20).map(|layout| layout.groups), Some(4));
        assert!(layout(200).is_some());
        for devices in [0, 4, 21, u16::MAX - 1] {
            assert_eq!(layout(devices), None, "{devices}");
        }
    }
}
