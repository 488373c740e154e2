//! Histories of locks and of shared arrays: their events, and how files of them are written, read and merged.
//!
//! This page is about locks. The module [`mod@array`] is about arrays, which have events of their own.
//!
//! A history has the events of locks, one JSON object per line, in the order of time. Simulations, the daemon and benchmarks
//! write one with [`Writer`], and kernel traces become one. [`Reader`] reads it. [`merge`] merges the histories of several
//! nodes. The crate `lockify-check` judges it. This crate shares no code with the lock manager, so a mistake there is not
//! repeated here.
//!
//! ```
//! use lockify_history::{Event, Kind, Mode, Reader, Writer};
//!
//! let mut writer = Writer::new(Vec::new());
//! writer.write(&Event::new(1, 1, Kind::Request).lock(7).resource("name").mode(Mode::EX).op(1))?;
//! writer.write(&Event::new(2, 1, Kind::Grant).lock(7).resource("name").mode(Mode::EX).op(1))?;
//! let file = writer.into_inner()?;
//! assert_eq!(Reader::new(&file[..]).count(), 2);
//! # Ok::<(), lockify_history::WriteError>(())
//! ```
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
mod event;
mod flags;
mod history;
mod merge;
mod mode;

pub use bytes::{BadEscape, Lvb, Resource};
pub use event::{ECANCEL, EDEADLK, EUNLOCK, Event, Kind, Member, MissingField};
pub use flags::{Flags, SbFlags};
pub use history::{
    LONGEST_LINE, Line, LineReader, LineWriter, ReadError, Reader, Sink, WriteError, Writer,
};
pub use merge::{MergeError, merge};
pub use mode::Mode;
