//! The rules that histories of locks and of shared arrays have to keep. This page is about locks. The module [`mod@array`] is
//! about arrays, which have rules of their own.
//!
//! The crate [`lockify_history`] has the events, and reads and writes them. [`Checker`] judges a history online, event by
//! event, or from a file ([`check_file`]). The checker shares no code with the lock manager, so a mistake there is not
//! repeated here.
//!
//! ```
//! use lockify_check::{Checker, Options};
//! use lockify_history::{Event, Kind, Mode};
//!
//! let mut checker = Checker::new(Options::whole());
//! for event in [
//!     Event::new(1, 1, Kind::Request).lock(7).resource("name").mode(Mode::EX).op(1),
//!     Event::new(2, 1, Kind::Grant).lock(7).resource("name").mode(Mode::EX).op(1),
//! ] {
//!     checker.observe(&event)?;
//! }
//! assert!(checker.finish().is_clean());
//! # Ok::<(), lockify_check::Violation>(())
//! ```
//!
//! # Rules
//! One file each, in [`rules`]:
//!
//! | rule | says |
//! |---|---|
//! | `one_master` | INV-1: one master per resource among live nodes, and the directory names it, except while a claim is unsettled |
//! | `compatible_grants` | INV-2: no two incompatible holds; provisional ones are counted, and none is left at the end |
//! | `claims_end` | INV-3: every claim ends confirmed, merged, in a reported conflict, with its lock, or with its node |
//! | `barrier` | INV-4: EX and PW are weakened only when all earlier claims of the node are settled |
//! | `completion_once` | every operation completes once |
//! | `lvb` | a read returns the last written lock value block; VALNOTVALID is reported when it must be |
//! | `order` | waiting requests are granted in order, where order is promised and can be judged |
//! | `deadlock` | each victim of a search for deadlocks was in one |
//! | `fencing` | tokens of PW and EX grow per resource |
//! | `lives` | tokens grow from every life to the lives after it, in the order of views, not of clocks |
//! | `progress` | each operation that is pending at the end is blocked by a held lock |
//!
//! A rule that needs events or fields that a history lacks is switched off, and the [`Report`] says so. A writer's `begin`
//! event names the kinds that it records, even if they do not occur.
#![forbid(unsafe_code)]

pub mod array;
mod checker;
mod file;
pub mod invariant;
mod outcome;
mod report;
pub mod rules;
pub mod state;

pub use checker::{Checker, Options};
pub use file::{Judged, check_any, check_file, check_reader};
pub use invariant::{Counts, Invariant, Violation};
pub use outcome::Outcome;
pub use report::{Off, Report};
