//! A resource's queues, counted: the master's questions cost the same for any number of locks.
//!
//! A resource with few locks is counted when it is asked about; one with many has a [`Crowd`], which is
//! kept up to date as locks come and go. Code that changes the counted properties of a queued lock has it
//! counted again ([`crate::store::Store::recount`]).

use core::hash::{Hash, Hasher};

use crate::flags::LockFlags;
use crate::lock::Lock;
use crate::mode::Mode;
use crate::queue::{Links, NIL, Queue};

/// From so many queued locks on, a resource has a [`Crowd`]; with one, it has none any more.
pub(crate) const MANY: u32 = 8;

const MODES: usize = Mode::ALL.len();

/// A set of modes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Modes(u8);

impl Modes {
    pub fn add(&mut self, mode: Mode) {
        self.0 |= 1 << mode as u8;
    }

    pub fn iter(self) -> impl Iterator<Item = Mode> {
        Mode::ALL.into_iter().filter(move |&mode| self.0 & 1 << mode as u8 != 0)
    }

    /// Returns true if one of them cannot be granted beside `mode`.
    pub fn conflict_with(self, mode: Mode) -> bool {
        self.iter().any(|other| !other.compatible(mode))
    }
}

impl FromIterator<Mode> for Modes {
    fn from_iter<T: IntoIterator<Item = Mode>>(modes: T) -> Modes {
        let mut all = Modes::default();
        modes.into_iter().for_each(|mode| all.add(mode));
        all
    }
}

/// The way in which a lock is counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Counted {
    #[default]
    Nothing,
    Granted(Mode),
    Converting {
        held: Mode,
        wanted: Mode,
        /// It is looked at even if it is not the first one.
        watched: bool,
    },
    Waiting {
        wanted: Mode,
        /// It need not wait for its turn; then also the mode that would do instead.
        unordered: bool,
        instead: Option<Mode>,
    },
}

impl Counted {
    pub fn of(lock: &Lock) -> Counted {
        let flags = lock.flags;
        match (lock.queue, lock.granted, lock.requested) {
            (Queue::Granted, Some(mode), _) => Counted::Granted(mode),
            (Queue::Converting, Some(held), Some(wanted)) => {
                let out_of_turn = LockFlags::NOORDER | LockFlags::EXPEDITE;
                let has_effects = LockFlags::CONVDEADLK | LockFlags::NODLCKWT;
                let watched = lock.disordered || flags.intersects(out_of_turn | has_effects);
                Counted::Converting { held, wanted, watched }
            }
            // It is being unlocked, and holds its mode until that is done.
            (Queue::Converting, Some(held), None) => Counted::Granted(held),
            (Queue::Waiting, _, Some(wanted)) => {
                let unordered = flags.intersects(LockFlags::NOORDER | LockFlags::EXPEDITE);
                let instead = flags.alternative(wanted).filter(|_| unordered);
                Counted::Waiting { wanted, unordered, instead }
            }
            _ => Counted::Nothing,
        }
    }
}

/// How many locks of a resource are what.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Tally {
    granted: [u32; MODES],
    /// By the mode held, then by the mode wanted.
    converting: [[u32; MODES]; MODES],
    watched: u32,
    waiting: [u32; MODES],
    unordered: [u32; MODES],
}

impl Tally {
    pub fn add(&mut self, counted: Counted) {
        self.change(counted, |count| *count += 1);
    }

    pub fn remove(&mut self, counted: Counted) {
        self.change(counted, |count| *count -= 1);
    }

    fn change(&mut self, counted: Counted, by_one: impl Fn(&mut u32)) {
        match counted {
            Counted::Nothing => {}
            Counted::Granted(mode) => by_one(&mut self.granted[mode as usize]),
            Counted::Converting { held, wanted, watched } => {
                by_one(&mut self.converting[held as usize][wanted as usize]);
                if watched {
                    by_one(&mut self.watched);
                }
            }
            Counted::Waiting { wanted, unordered, instead } => {
                by_one(&mut self.waiting[wanted as usize]);
                if unordered {
                    by_one(&mut self.unordered[wanted as usize]);
                    instead.into_iter().for_each(|mode| by_one(&mut self.unordered[mode as usize]));
                }
            }
        }
    }

    /// Returns true if locks in force keep `wanted` from being granted to one that itself holds
    /// `own`.
    pub fn conflict(&self, wanted: Mode, own: Option<Mode>) -> bool {
        Mode::ALL.into_iter().filter(|held| !held.compatible(wanted)).any(|held| {
            let converting: u32 = self.converting[held as usize].iter().sum();
            self.granted[held as usize] + converting > u32::from(own == Some(held))
        })
    }

    /// How many granted locks are in the way of `wanted`.
    pub fn granted_against(&self, wanted: Mode) -> u32 {
        self.granted_where(|held| !held.compatible(wanted))
    }

    /// How many granted locks have such a mode.
    pub fn granted_where(&self, such: impl Fn(Mode) -> bool) -> u32 {
        let modes = Mode::ALL.into_iter().filter(|&held| such(held));
        modes.map(|held| self.granted[held as usize]).sum()
    }

    /// Returns true if a converter and another one wait for each other (docs/design/semantics.md 5). Any
    /// converter whose wait closes the circle counts, and of those `ahead` of it, which want these modes,
    /// also one that only waits for it. `queued`: it is in the queue itself.
    pub fn deadlock(&self, held: Mode, wanted: Mode, ahead: Modes, queued: bool) -> bool {
        let circle = |(of, to): (Mode, Mode)| {
            let own = queued && (of, to) == (held, wanted);
            self.converting[of as usize][to as usize] > u32::from(own)
                && !held.compatible(to)
                && !of.compatible(wanted)
        };
        ahead.conflict_with(held) || pairs().any(circle)
    }

    /// The modes that converters want.
    pub fn wanted_by_converters(&self) -> Modes {
        let wanted = |&(of, to): &(Mode, Mode)| self.converting[of as usize][to as usize] > 0;
        pairs().filter(wanted).map(|(_, to)| to).collect()
    }

    /// The modes that converters hold.
    pub fn held_by_converters(&self) -> Modes {
        let held = |&(of, to): &(Mode, Mode)| self.converting[of as usize][to as usize] > 0;
        pairs().filter(held).map(|(of, _)| of).collect()
    }

    /// Returns true if a converter is looked at even if it is not the first one.
    pub fn any_watched(&self) -> bool {
        self.watched > 0
    }

    fn wanted_by_waiters(&self) -> Modes {
        Mode::ALL.into_iter().filter(|&mode| self.waiting[mode as usize] > 0).collect()
    }

    pub fn strongest_converting(&self) -> Option<Mode> {
        self.wanted_by_converters().iter().max()
    }

    pub fn strongest_waiting(&self) -> Option<Mode> {
        self.wanted_by_waiters().iter().max()
    }

    /// Returns true if a lock waits for this mode.
    pub fn awaited(&self, mode: Mode) -> bool {
        let both = self.wanted_by_converters().iter().chain(self.wanted_by_waiters().iter());
        both.into_iter().any(|wanted| wanted == mode)
    }

    /// Returns true if a lock that need not wait for its turn can be granted.
    pub fn unordered_may_go(&self) -> bool {
        let waits = |&mode: &Mode| self.unordered[mode as usize] > 0;
        Mode::ALL.into_iter().filter(waits).any(|mode| !self.conflict(mode, None))
    }
}

fn pairs() -> impl Iterator<Item = (Mode, Mode)> {
    Mode::ALL.into_iter().flat_map(|of| Mode::ALL.into_iter().map(move |to| (of, to)))
}

/// A round of blocking notices to the granted locks: once made, it has nothing new to say until the
/// granted locks change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notices {
    /// For a lock that wants this mode.
    Wanted(Mode),
    /// For the strongest mode waited for; whether somebody waits for CW.
    Strongest(Mode, bool),
}

impl Notices {
    fn bit(self) -> u32 {
        match self {
            Notices::Wanted(mode) => 1 << mode as u32,
            Notices::Strongest(mode, cw) => 1 << (MODES as u32 + 2 * mode as u32 + u32::from(cw)),
        }
    }
}

/// The counts of a resource with many locks.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    pub tally: Tally,
    /// The last granted lock of each mode: those of one mode are together.
    pub last: [u32; MODES],
    /// Rounds of notices that have been made since the granted locks changed.
    made: u32,
}

impl Crowd {
    pub fn new() -> Crowd {
        Crowd { tally: Tally::default(), last: [NIL; MODES], made: 0 }
    }

    /// The last granted lock that is as strong as `mode`, or stronger.
    pub fn last_from(&self, mode: Mode) -> u32 {
        let from = &self.last[mode as usize..];
        from.iter().copied().find(|&slot| slot != NIL).unwrap_or(NIL)
    }

    pub fn has_made(&self, notices: Notices) -> bool {
        self.made & notices.bit() != 0
    }

    pub fn note_made(&mut self, notices: Notices) {
        self.made |= notices.bit();
    }

    /// The granted locks have changed, or their notices.
    pub fn forget_made(&mut self) {
        self.made = 0;
    }
}

/// Derived data of a lock, which is not a part of its state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    /// As its resource's [`Crowd`] counts it.
    pub counted: Counted,
    /// Its neighbours among its client's locks.
    pub mine: Links,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { counted: Counted::Nothing, mine: Links::LOOSE }
    }
}

impl PartialEq for Marks {
    fn eq(&self, _: &Marks) -> bool {
        true
    }
}

impl Eq for Marks {}

impl Hash for Marks {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Where a resource's [`Crowd`] is, if it has one: not a part of its state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrowdKey(pub u32);

impl Default for CrowdKey {
    fn default() -> CrowdKey {
        CrowdKey(NIL)
    }
}

impl PartialEq for CrowdKey {
    fn eq(&self, _: &CrowdKey) -> bool {
        true
    }
}

impl Eq for CrowdKey {}

impl Hash for CrowdKey {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
