//! One event of a history.

use serde::{Deserialize, Serialize};

use crate::bytes::{Lvb, Resource};
use crate::flags::{Flags, SbFlags};
use crate::mode::Mode;

/// The kind of an event. The crate's documentation has the meaning and the fields of each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The history begins with an empty lockspace; `writes` says what its writer records.
    Begin,
    /// The history ends when everything had come to rest.
    End,
    /// A client called for a new lock.
    Request,
    /// An operation ended well: its completion (status 0) was delivered.
    Grant,
    /// An operation ended otherwise (`status`), or an unlock was done (EUNLOCK).
    Complete,
    /// A client called for a conversion.
    Convert,
    /// A client called for an unlock.
    Unlock,
    /// A client called for a cancel.
    Cancel,
    /// A blocking notice was delivered.
    Bast,
    /// A lock was reported lost.
    Lost,
    /// A provisional grant became final.
    Settled,
    /// A client is gone, and its locks with it.
    Gone,
    /// A node claimed a mastership.
    Claim,
    /// A claim was confirmed.
    Confirm,
    /// A claim was refused.
    Refuse,
    /// A refused claim's locks were merged into the master's.
    Merge,
    /// A refused claim ended in a conflict.
    Conflict,
    /// A claim ended because its lock was gone.
    Drop,
    /// A claim was sent again.
    Resend,
    /// A node became a resource's master, or (`gained` false) ceased to be.
    Master,
    /// A directory record was written, or (without `master`) removed.
    Dir,
    /// An operation began (`waits`) or ended to wait behind the claim barrier.
    Barrier,
    /// A node begins to recover view `view`.
    View,
    /// A node has recovered view `view`.
    Recover,
    /// A node's incarnation ended: crashed, was fenced or halted.
    Crash,
    /// A node left in order.
    Leave,
    /// A fault was injected or ended (information only).
    Fault,
}

/// A member of a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// The node.
    pub node: u32,
    /// Its incarnation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
}

/// One line of a history. Make one with [`Event::new`] and set the fields that its kind has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// When, in nanoseconds on a clock common to all nodes (virtual time, `CLOCK_MONOTONIC` of
    /// one host, or a documented merge).
    pub t: u64,
    /// The node that it happened at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// That node's incarnation; absent: its latest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// The client that owns the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The lock, unique among the live locks of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<u64>,
    /// The resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Resource>,
    /// The kind of event.
    #[serde(rename = "event")]
    pub kind: Kind,
    /// The mode asked for (calls) or now granted (completions), or wanted by others (bast).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The call's flags.
    #[serde(default, skip_serializing_if = "Flags::is_empty")]
    pub flags: Flags,
    /// How the operation ended: errno of libdlm (EUNLOCK 0x10002, ECANCEL 0x10001); the sign
    /// does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i64>,
    /// The fencing token of a grant of PW or EX.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The operation that a call begins or a completion ends; unique among those of its lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<u64>,
    /// Granted while the claim for the resource was not settled.
    #[serde(default, skip_serializing_if = "is_false")]
    pub provisional: bool,
    /// The claim; unique among those of its node and incarnation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_id: Option<u64>,
    /// The resource's master, as its directory (dir) or the refusal (refuse, merge) says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<u32>,
    /// False if the mastership was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gained: Option<bool>,
    /// True if an operation now waits behind the barrier, false if it ends to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<bool>,
    /// The sequence number of a view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<u64>,
    /// The members of a view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<Member>>,
    /// The lock value block that a call may write or a completion read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lvb: Option<Lvb>,
    /// The completion's flags.
    #[serde(default, skip_serializing_if = "SbFlags::is_empty")]
    pub sb_flags: SbFlags,
    /// The locked object is being freed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub freed: bool,
    /// False if the caller gave up its place in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered: Option<bool>,
    /// Fields and events that the writer records whenever they occur (begin).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<Vec<String>>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

fn is_false(b: &bool) -> bool {
    !b
}

/// An event lacks a field without which it means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a `{event}` event needs `{field}`")]
pub struct MissingField {
    /// The event.
    pub event: &'static str,
    /// The field.
    pub field: &'static str,
}

impl Kind {
    /// The name, as histories write it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Begin => "begin",
            Kind::End => "end",
            Kind::Request => "request",
            Kind::Grant => "grant",
            Kind::Complete => "complete",
            Kind::Convert => "convert",
            Kind::Unlock => "unlock",
            Kind::Cancel => "cancel",
            Kind::Bast => "bast",
            Kind::Lost => "lost",
            Kind::Settled => "settled",
            Kind::Gone => "gone",
            Kind::Claim => "claim",
            Kind::Confirm => "confirm",
            Kind::Refuse => "refuse",
            Kind::Merge => "merge",
            Kind::Conflict => "conflict",
            Kind::Drop => "drop",
            Kind::Resend => "resend",
            Kind::Master => "master",
            Kind::Dir => "dir",
            Kind::Barrier => "barrier",
            Kind::View => "view",
            Kind::Recover => "recover",
            Kind::Crash => "crash",
            Kind::Leave => "leave",
            Kind::Fault => "fault",
        }
    }

    fn required(self) -> &'static [&'static str] {
        match self {
            Kind::Begin | Kind::End | Kind::Fault => &[],
            Kind::Request => &["node", "lock", "resource", "mode"],
            Kind::Grant | Kind::Convert => &["node", "lock", "mode"],
            Kind::Complete => &["node", "lock", "status"],
            Kind::Unlock | Kind::Cancel | Kind::Bast | Kind::Lost | Kind::Settled => {
                &["node", "lock"]
            }
            Kind::Gone => &["node", "client"],
            Kind::Claim
            | Kind::Confirm
            | Kind::Refuse
            | Kind::Merge
            | Kind::Conflict
            | Kind::Drop
            | Kind::Resend => &["node", "resource", "claim_id"],
            Kind::Master | Kind::Dir => &["node", "resource"],
            Kind::Barrier => &["node", "lock", "waits"],
            Kind::View | Kind::Recover | Kind::Crash | Kind::Leave => &["node"],
        }
    }
}

impl Event {
    /// An event of this kind at this node, without further fields.
    pub fn new(t: u64, node: u32, kind: Kind) -> Event {
        Event { node: Some(node), ..Event::anywhere(t, kind) }
    }

    /// An event that belongs to no node: begin, end, fault.
    pub fn anywhere(t: u64, kind: Kind) -> Event {
        Event {
            t,
            node: None,
            incarnation: None,
            client: None,
            lock: None,
            resource: None,
            kind,
            mode: None,
            flags: Flags::empty(),
            status: None,
            token: None,
            op: None,
            provisional: false,
            claim_id: None,
            master: None,
            gained: None,
            waits: None,
            view: None,
            members: None,
            lvb: None,
            sb_flags: SbFlags::empty(),
            freed: false,
            ordered: None,
            writes: None,
            note: None,
        }
    }

    /// The event, of this incarnation of its node.
    pub fn incarnation(self, incarnation: u64) -> Event {
        Event { incarnation: Some(incarnation), ..self }
    }

    /// The event, of this lock.
    pub fn lock(self, lock: u64) -> Event {
        Event { lock: Some(lock), ..self }
    }

    /// The event, of this resource.
    pub fn resource(self, name: impl AsRef<[u8]>) -> Event {
        Event { resource: Some(Resource::new(name)), ..self }
    }

    /// The event, with this mode.
    pub fn mode(self, mode: Mode) -> Event {
        Event { mode: Some(mode), ..self }
    }

    /// The event, of this operation.
    pub fn op(self, op: u64) -> Event {
        Event { op: Some(op), ..self }
    }

    /// The event, of this claim.
    pub fn claim(self, id: u64) -> Event {
        Event { claim_id: Some(id), ..self }
    }

    /// Checks that the event has all fields that its kind needs.
    ///
    /// # Errors
    /// The first field that is missing.
    pub fn validate(&self) -> Result<(), MissingField> {
        for &field in self.kind.required() {
            let present = match field {
                "node" => self.node.is_some(),
                "lock" => self.lock.is_some(),
                "resource" => self.resource.is_some(),
                "mode" => self.mode.is_some(),
                "status" => self.status.is_some(),
                "client" => self.client.is_some(),
                "claim_id" => self.claim_id.is_some(),
                _ => self.waits.is_some(),
            };
            if !present {
                return Err(MissingField { event: self.kind.name(), field });
            }
        }
        Ok(())
    }
}

/// Status of a completed unlock (libdlm's `EUNLOCK`).
pub const EUNLOCK: i64 = 0x10002;
/// Status of an operation that a deadlock ended.
pub const EDEADLK: i64 = 35;
/// Status of a cancelled operation (libdlm's `ECANCEL`).
pub const ECANCEL: i64 = 0x10001;
