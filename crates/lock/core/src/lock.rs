//! A lock, local or the master's copy of a remote one.

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};

use crate::crowd::Marks;
use crate::flags::{LockFlags, SbFlags};
use crate::ids::{ClientId, LockId, NodeId, Time};
use crate::io::{Lvb, UnlockArgs};
use crate::mode::Mode;
use crate::queue::{Links, Queue};
use crate::resource::ResourceKey;

/// The owner of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Owner {
    /// A client of this node.
    Local(ClientId),
    /// A client of this node left it behind.
    Orphan(ClientId),
    /// Its client is gone, or was told that it timed out, and it is being unlocked; nobody is told
    /// of anything ([`crate::store::Store::disown`]).
    Gone,
    /// Another node's: this is the master's copy.
    Remote { node: NodeId, lkid: LockId, client: Option<ClientId> },
}

/// The operation that a lock has outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Op {
    None,
    Request,
    Convert,
    Unlock,
}

/// How far the outstanding operation has come (the stages of Linux `lock.c`, plus the waits that
/// come before the network).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum OpStage {
    /// No operation.
    Idle,
    /// Behind the claim barrier; before the recovery gate, which it must never hold.
    Barrier,
    /// At the recovery gate: issued when the gate opens.
    Gate,
    /// The lock is being merged at another master: issued when it is there.
    Frozen,
    /// Waits for the end of another lock's look-up of the master.
    AwaitsMaster,
    /// A look-up is out to the directory node.
    LookUp,
    /// A message is out to this node as the master, its reply has not come.
    Asked(NodeId),
    /// In the master's convert or wait queue.
    Queued,
}

/// A request that came while another operation was outstanding.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Overlap {
    pub cancel: Option<CancelCause>,
    /// The cancel has been sent to the master and its reply is outstanding.
    pub cancel_sent: bool,
    pub unlock: Option<UnlockArgs>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum CancelCause {
    Asked,
    TimedOut,
    /// The search for deadlocks chose this wait.
    Deadlock,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Lock {
    pub id: LockId,
    pub resource: ResourceKey,
    pub owner: Owner,
    pub queue: Queue,
    pub links: Links,
    #[serde(skip)]
    pub marks: Marks,

    pub granted: Option<Mode>,
    pub requested: Option<Mode>,
    pub flags: LockFlags,
    pub status_flags: SbFlags,
    pub token: u64,
    /// A PR-CW conversion was on its way when its master died: either mode may be in force.
    pub granted_unknown: bool,
    /// Its conversion waited when a recovery lost the order of conversions: it may go out of order,
    /// or one could wait behind another that waits for it.
    pub disordered: bool,
    /// Granted on a claim that is not settled.
    pub provisional: bool,
    /// Reported lost; may only be unlocked.
    pub lost: bool,
    /// A master's copy that came by a merge: its grant answers the merge.
    pub merging: bool,

    pub op: Op,
    pub stage: OpStage,
    /// Numbers the lock's messages to masters, so that late replies are recognized.
    pub op_no: u32,
    /// `op_no` when the operation was called: stays when recovery sends it again.
    pub op_start: u32,
    pub overlap: Option<Box<Overlap>>,
    /// The mode when the operation was called.
    pub mode_at_call: Option<Mode>,
    /// The client was told that its conversion has timed out and that it holds this mode; the
    /// conversion's result concerns no client any more.
    pub mode_reported: Option<Mode>,
    /// The master's id of this lock, where the master is remote.
    pub remid: Option<LockId>,

    pub tag: u64,
    pub since: Time,
    pub bast: bool,
    /// The strongest mode that a blocking notice was sent for since the last grant (at the master).
    pub high_bast: Option<Mode>,
    /// The mode of the last completion delivered (at the owner), and the last callback if it was
    /// a blocking notice; both for suppression.
    pub cast_mode: Option<Mode>,
    pub last_bast: Option<Mode>,

    /// The copy of the resource's value block that this lock has read or written last.
    pub lvb: Option<Lvb>,
    pub lvb_seq: u32,
    /// That copy was valid, and nobody can have written since the lock went above CR.
    pub lvb_current: bool,
    /// The block that the present operation writes if it lowers or unlocks PW or EX.
    pub lvb_out: Option<Lvb>,
    /// The present operation has read the resource's block into `lvb`.
    pub lvb_read: bool,
}

impl Lock {
    pub fn new(resource: ResourceKey, owner: Owner, now: Time) -> Lock {
        Lock {
            id: LockId(0),
            resource,
            owner,
            queue: Queue::Unanswered,
            links: Links::LOOSE,
            marks: Marks::default(),
            granted: None,
            requested: None,
            flags: LockFlags::empty(),
            status_flags: SbFlags::empty(),
            token: 0,
            granted_unknown: false,
            disordered: false,
            provisional: false,
            lost: false,
            merging: false,
            op: Op::None,
            stage: OpStage::Idle,
            op_no: 0,
            op_start: 0,
            overlap: None,
            mode_at_call: None,
            mode_reported: None,
            remid: None,
            tag: 0,
            since: now,
            bast: false,
            high_bast: None,
            cast_mode: None,
            last_bast: None,
            lvb: None,
            lvb_seq: 0,
            lvb_current: false,
            lvb_out: None,
            lvb_read: false,
        }
    }

    /// Begins an operation: everything that belonged to the last one is gone.
    pub fn begin(&mut self, op: Op, requested: Option<Mode>, flags: LockFlags, lvb: Option<Lvb>) {
        self.op = op;
        self.stage = OpStage::Idle;
        self.op_no = (self.op_no + 1) & Lock::OP_MASK;
        self.op_start = self.op_no;
        self.requested = requested;
        self.flags = flags;
        self.status_flags = SbFlags::empty();
        self.disordered = false;
        self.overlap = None;
        self.mode_at_call = self.granted;
        self.mode_reported = None;
        self.lvb_read = false;
        self.lvb_out = lvb.filter(|_| self.granted.is_some_and(Mode::writes));
    }

    /// The number of a lock's first operation, its request (if it was not adopted).
    pub const FIRST_OP: u32 = 1;

    /// Operation numbers use these bits; the rest marks merges.
    pub const OP_MASK: u32 = 0x7fff_ffff;

    /// Returns true if this is a request that no master has been sent: it may end here.
    pub fn is_unsent(&self) -> bool {
        let here = matches!(self.stage, OpStage::Barrier | OpStage::Gate | OpStage::AwaitsMaster);
        self.op == Op::Request && here
    }

    pub fn is_local(&self) -> bool {
        !matches!(self.owner, Owner::Remote { .. })
    }

    pub fn client(&self) -> Option<ClientId> {
        match self.owner {
            Owner::Local(client) => Some(client),
            Owner::Remote { client, .. } => client,
            Owner::Orphan(_) | Owner::Gone => None,
        }
    }

    pub fn overlap(&mut self) -> &mut Overlap {
        self.overlap.get_or_insert_default()
    }

    /// The operation is over (or was never begun).
    pub fn rest(&mut self) {
        self.op = Op::None;
        self.stage = OpStage::Idle;
        self.requested = None;
        self.overlap = None;
        self.mode_reported = None;
    }
}
