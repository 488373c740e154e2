//! Histories of locks and of shared arrays, and the rules that they have to keep. This page is about locks. The module
//! [`mod@array`] is about arrays, which have events and rules of their own.
//!
//! A history has the events of locks, one JSON object per line, in the order of time. Simulations, the daemon and benchmarks
//! write one with [`Writer`], and kernel traces become one. [`Reader`] reads it. [`Checker`] judges it online, event by event,
//! or from a file ([`check_file`]). [`merge`] merges the histories of several nodes. The checker shares no code with the lock
//! manager, so a mistake there is not repeated here.
//!
//! ```
//! use lockify_check::{Checker, Event, Kind, Mode, Options};
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
//!
//! # Events
//! All have `t` (nanoseconds on a clock common to all nodes) and `event`; all but `begin`, `end` and `fault` have `node`;
//! `incarnation` may be left out until the node's next life. The events of one node are in the order in which its lock manager
//! handled them. Calls that are refused at once (EINVAL, EBUSY) are no events. *Fields in italics* are optional.
//!
//! | event | meaning | fields |
//! |---|---|---|
//! | `begin` | the history begins with an empty lockspace | *`writes`*: the kinds that the writer always records: `request`, `grant`, `claim`, `master`, `dir`, `barrier`, `token`, `lvb`, `deadlock` (they are searched for) |
//! | `end` | everything had come to rest: an unfinished operation is now a violation | |
//! | `request` | a client called for a new lock | `lock` `resource` `mode` *`client` `flags` `op` `ordered`* |
//! | `convert` | a client called for a conversion; the hold of the old mode ends, as far as the new one is weaker | `lock` `mode` *`flags` `op` `lvb`* (what may be written) *`freed` `ordered`* |
//! | `unlock` | a client called for an unlock; the hold ends | `lock` *`flags` `op` `lvb`* (what may be written) *`freed`* |
//! | `cancel` | a client called for a cancel; completes by nothing but the end of the operation that it cancels | `lock` |
//! | `grant` | the completion of a request or conversion was delivered, with status 0; a hold begins | `lock` `mode` (granted) *`resource` `op` `token` `sb_flags` `lvb`* (read from the resource) *`provisional` `claim_id`* |
//! | `complete` | any other completion was delivered: EUNLOCK, EAGAIN, ECANCEL, EDEADLK, ETIMEDOUT … | `lock` `status` *`op` `mode`* (still granted; default: the one before) *`sb_flags`* |
//! | `settled` | a provisional grant became final; `token` replaces the one before | `lock` *`token` `claim_id`* |
//! | `lost` | the lock was reported lost; the hold ends, and completions that are outstanding may stay out | `lock` *`note`* |
//! | `bast` | a blocking notice was delivered | `lock` *`mode`* (wanted) |
//! | `gone` | a client is gone, and all it held on this node with it | `client` |
//! | `claim` | the node claimed a mastership | `resource` `claim_id` |
//! | `resend` | the claim was sent again | `resource` `claim_id` |
//! | `refuse` | it was refused; the node is not the master | `resource` `claim_id` *`master`* |
//! | `confirm`, `merge`, `conflict`, `drop` | it is settled: confirmed; refused, its locks merged at `master`; refused, its locks reported lost; its lock is gone | `resource` `claim_id` *`master`* |
//! | `master` | the node became the resource's master, or gave that up | `resource` *`gained`* (default true) |
//! | `dir` | the node, being the resource's directory, recorded its master, or removed the record | `resource` *`master`* (absent: removed) |
//! | `barrier` | an operation begins (`waits` true) or ends (false) to wait behind the claim barrier | `lock` `waits` |
//! | `view` | the node begins to recover a view | *`view`* (sequence) *`members`* |
//! | `recover` | the node has recovered it: the locks of nodes outside it may be granted again | *`view` `members`* (absent: nobody who died is in it) |
//! | `crash` | the incarnation ended: it crashed, was fenced or halted. Its holds go on to block others until a `recover` | |
//! | `leave` | the node left in order, and its holds ended | |
//! | `fault` | something was broken, or repaired | *`note`* |
//!
//! # Fields
//!
//! | field | JSON | meaning |
//! |---|---|---|
//! | `lock` | number | the lock's id, unique among the live locks of its node and incarnation |
//! | `resource` | string | the name; `%`, control characters and bytes that are not UTF-8 as `%XX` ([`Resource`]) |
//! | `mode` | string | NL, CR, CW, PR, PW, EX |
//! | `flags` | list of strings | the call's, in lower case: `noqueue`, `valblk`, `force`, `notify`, `freed` … ([`Flags`]) |
//! | `sb_flags` | list of strings | the completion's: `demoted`, `valnotvalid`, `altmode` |
//! | `status` | number | errno as in libdlm (EUNLOCK 65538, ECANCEL 65537), of either sign |
//! | `op` | number | the operation that a call begins and a completion ends, unique among those of its lock. Without it, there is one at a time |
//! | `token` | number | the fencing token; counts on grants of PW and EX |
//! | `lvb` | string | the lock value block in hexadecimal |
//! | `provisional` | bool | granted while the claim is unsettled |
//! | `claim_id` | number | the claim, unique among those of its node and incarnation |
//! | `freed` | bool | the locked object is being freed: no claim barrier (as the flag `freed`) |
//! | `ordered` | bool | false: the caller gave up its place in the queue |
//! | `members` | list of `{"node":1,"incarnation":1}` | the members of the view |
//! | `note` | string | for people |
#![forbid(unsafe_code)]

pub mod array;
mod bytes;
mod checker;
mod event;
mod file;
mod flags;
mod history;
pub mod invariant;
mod merge;
mod mode;
mod report;
pub mod rules;
pub mod state;

pub use bytes::{BadEscape, Lvb, Resource};
pub use checker::{Checker, Options};
pub use event::{ECANCEL, EDEADLK, EUNLOCK, Event, Kind, Member, MissingField};
pub use file::{Judged, Outcome, check_any, check_file, check_reader};
pub use flags::{Flags, SbFlags};
pub use history::{
    LONGEST_LINE, Line, LineReader, LineWriter, ReadError, Reader, Sink, WriteError, Writer,
};
pub use invariant::{Counts, Invariant, Violation};
pub use merge::{MergeError, merge};
pub use mode::Mode;
pub use report::{Off, Report};
