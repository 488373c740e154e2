//! A reading of the paper: the choices for what it does not say. Each reading has disks of its own, fitted to zero-overhead.

use std::fmt;
use std::str::FromStr;

use lockify_array::{GiveBack, Scheme};
use lockify_sim::{Delay, MICROSECOND, Nanos, SECOND};

use super::figures::{ALIGNMENT, HOSTS, keeps_up, of_turns, papers_turns};
use super::published::figure_6;
use crate::measure::{Case, MeasureError, measure};
use crate::profile::{Calibration, Profile, Seeks};
use crate::workload::{Alignment, Arrivals, Mix, PER_HOST, Sizes};

/// Disks are fitted in steps of this.
const STEP: Nanos = 10 * MICROSECOND;
/// The slowest disk that is tried, in steps.
const SLOWEST: u64 = 1_000;

/// The distribution of the lock server's 750 us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Table 1's "mean" is that of an exponential time.
    Exponential,
    /// Always the same time.
    Constant,
}

/// The choices that the paper leaves open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// How long operations are.
    pub sizes: Sizes,
    /// When those of a host begin.
    pub arrivals: Arrivals,
    /// The distribution of disks' positioning.
    pub seeks: Seeks,
    /// The distribution of the lock server's time.
    pub service: Service,
    /// The locks that go back at a callback.
    pub give_back: GiveBack,
}

/// A choice other than that of [`Reading::FIXED`], with its name.
type Choice = (&'static str, fn(&mut Reading));

const CHOICES: [Choice; 5] = [
    ("grant", |reading| reading.give_back = GiveBack::Grant),
    ("constant", |reading| reading.service = Service::Constant),
    ("rounded", |reading| reading.sizes = Sizes::Rounded),
    ("together", |reading| reading.arrivals = Arrivals::Together),
    ("wide", |reading| reading.seeks = Seeks::Wide),
];

/// The meaning of the names of choices, for people.
pub const NAMES: &str = "grant: a callback brings back all unused locks of a grant, not only those that it calls. constant: the lock server \
     takes 750 us for each message, not an exponential time. rounded: an operation's length is a uniform one that is rounded to units, \
     not each number of units equally often. together: a host's three operations begin at the same time, not each at its own. wide: disks' \
     positioning is exponential, not normal with a deviation of 1 ms.";

impl Reading {
    /// The one that was fixed before any protocol was measured.
    pub const FIXED: Reading = Reading {
        sizes: Sizes::Equal,
        arrivals: Arrivals::Apart,
        seeks: Seeks::Narrow,
        service: Service::Exponential,
        give_back: GiveBack::Called,
    };

    /// Every combination of the choices, with the fixed one first.
    pub fn all() -> Vec<Reading> {
        let mut all = vec![Reading::FIXED];
        for (_, choose) in CHOICES {
            let others: Vec<Reading> = all.iter().map(|reading| reading.with(choose)).collect();
            all.extend(others);
        }
        all
    }

    fn with(mut self, choose: fn(&mut Reading)) -> Reading {
        choose(&mut self);
        self
    }

    /// The same disks, whatever the lock server and its callbacks do.
    pub(super) fn disks(self) -> Reading {
        let Reading { service, give_back, .. } = Reading::FIXED;
        Reading { service, give_back, ..self }
    }

    fn case(&self, scheme: Scheme, hosts: u32, alignment: Alignment, positioning: Nanos) -> Case {
        let mut profile = Profile::table_1(positioning);
        profile.seeks = self.seeks;
        if self.service == Service::Constant {
            profile.serving = Delay::Constant(750 * MICROSECOND);
        }
        let mix = Mix { sizes: self.sizes, ..Mix::table_1(alignment) };
        let case = Case::table_1(scheme, hosts, mix, profile);
        let case = Case { arrivals: self.arrivals, give_back: self.give_back, ..case };
        of_turns(case, papers_turns(scheme))
    }
}

/// There is no such choice.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "there is no choice \"{0}\"; there are fixed, or a list of grant, constant, rounded, together, wide"
)]
pub struct UnknownChoice(pub String);

impl FromStr for Reading {
    type Err = UnknownChoice;

    fn from_str(text: &str) -> Result<Reading, UnknownChoice> {
        if text == FIXED {
            return Ok(Reading::FIXED);
        }
        let choice = |name: &str| CHOICES.into_iter().find(|(known, _)| *known == name);
        text.split(',').try_fold(Reading::FIXED, |reading, name| {
            let (_, choose) = choice(name).ok_or_else(|| UnknownChoice(name.to_owned()))?;
            Ok(reading.with(choose))
        })
    }
}

/// The name of the fixed reading.
const FIXED: &str = "fixed";

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen = CHOICES.iter().filter(|(_, choose)| self.with(*choose) == *self);
        let names: Vec<&str> = chosen.map(|(name, _)| *name).collect();
        f.pad(&if names.is_empty() { FIXED.to_owned() } else { names.join(",") })
    }
}

/// A reading with its disks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lab {
    pub(super) reading: Reading,
    disks: Disks,
}

/// Mean positioning times: by calibration A and B, for each alignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disks([[Nanos; 2]; 2]);

impl Disks {
    /// Those of the fixed reading.
    pub(super) fn fixed() -> Disks {
        let of = |calibration: Calibration| Alignment::ALL.map(|a| calibration.positioning(a));
        Disks([of(Calibration::Peak), of(Calibration::Latency)])
    }

    /// Those of a reading.
    pub(super) fn of(reading: Reading) -> Result<Disks, MeasureError> {
        match reading.disks() {
            Reading::FIXED => Ok(Disks::fixed()),
            other => Disks::fitted(&other),
        }
    }

    /// Fits zero-overhead's peak and latency to the published ones, in steps of 10 us.
    fn fitted(reading: &Reading) -> Result<Disks, MeasureError> {
        let mut found = [[0; 2]; 2];
        for (at, alignment) in Alignment::ALL.into_iter().enumerate() {
            let peak = |positioning| keeps_the_peak(reading, alignment, positioning);
            let latency = |positioning| is_fast_enough(reading, alignment, positioning);
            found[0][at] = slowest(peak)?;
            found[1][at] = slowest(latency)?;
        }
        Ok(Disks(found))
    }

    fn positioning(&self, calibration: Calibration, alignment: Alignment) -> Nanos {
        let Disks([peak, latency]) = self;
        let [stripe, free] = match calibration {
            Calibration::Peak => peak,
            Calibration::Latency => latency,
        };
        match alignment {
            Alignment::Stripe => *stripe,
            Alignment::Free => *free,
        }
    }
}

/// The slowest disk that is fast enough, by bisection.
fn slowest(fits: impl Fn(Nanos) -> Result<bool, MeasureError>) -> Result<Nanos, MeasureError> {
    let (mut fast, mut slow) = (0, SLOWEST);
    while slow - fast > 1 {
        let middle = (fast + slow) / 2;
        if fits(middle * STEP)? {
            fast = middle;
        } else {
            slow = middle;
        }
    }
    Ok(fast * STEP)
}

fn keeps_the_peak(
    reading: &Reading,
    alignment: Alignment,
    positioning: Nanos,
) -> Result<bool, MeasureError> {
    let hosts = (figure_6(Scheme::ZeroOverhead).peak / PER_HOST).round() as u32;
    let case = reading.case(Scheme::ZeroOverhead, hosts, alignment, positioning);
    Ok(keeps_up(&measure(&Case { length: 20 * SECOND, ..case }, 1)?))
}

fn is_fast_enough(
    reading: &Reading,
    alignment: Alignment,
    positioning: Nanos,
) -> Result<bool, MeasureError> {
    let case = reading.case(Scheme::ZeroOverhead, HOSTS, alignment, positioning);
    let found = measure(&case, 1)?;
    Ok(keeps_up(&found) && found.mean_ms() <= figure_6(Scheme::ZeroOverhead).latency_ms)
}

impl Lab {
    /// The reading that was fixed first.
    pub(super) fn fixed() -> Lab {
        Lab { reading: Reading::FIXED, disks: Disks::fixed() }
    }

    /// A reading with disks that fit it.
    pub(super) fn new(reading: Reading, disks: Disks) -> Lab {
        Lab { reading, disks }
    }

    /// The same, with disks that have to be found.
    pub(super) fn fitted(reading: Reading) -> Result<Lab, MeasureError> {
        Ok(Lab { reading, disks: Disks::of(reading)? })
    }

    /// A case with the paper's devices.
    pub(super) fn table_1(
        &self,
        scheme: Scheme,
        hosts: u32,
        alignment: Alignment,
        calibration: Calibration,
    ) -> Case {
        let positioning = self.disks.positioning(calibration, alignment);
        self.reading.case(scheme, hosts, alignment, positioning)
    }

    /// The same with Table 1's hosts, and the rule of alignment for figures that the paper shows once.
    pub(super) fn loaded(&self, scheme: Scheme, calibration: Calibration) -> Case {
        self.table_1(scheme, HOSTS, ALIGNMENT, calibration)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_reading_comes_back_from_its_name() {
        let all = Reading::all();
        assert_eq!((all[0], all.len()), (Reading::FIXED, 1 << CHOICES.len()));
        let names: BTreeSet<String> = all.iter().map(Reading::to_string).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|reading| reading.to_string().parse() == Ok(*reading)));
        assert_eq!("grant,nothing".parse::<Reading>(), Err(UnknownChoice("nothing".into())));
    }

    #[test]
    fn the_slowest_disk_that_fits_is_found() {
        assert_eq!(slowest(|positioning| Ok(positioning <= 4_567 * MICROSECOND)), Ok(456 * STEP));
        assert_eq!(slowest(|_| Ok(false)), Ok(0));
    }
}
