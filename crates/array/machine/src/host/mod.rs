//! A host breaks operations on the array down into requests to devices. It starts them again where a scheme demands it.
//!
//! | file | subject |
//! |---|---|
//! | `engine.rs` | the way of an operation: tries, phases, siblings; the same for every scheme |
//! | `presence.rs` | renewals, and the host's state on a new connection |
//! | `replies.rs` | the effect of an answer on its try |
//! | `changes.rs` | operations under way when the array's state changes (docs/design/array.md 3.3, 3.4) |
//! | `job.rs` | computation on the blocks of an operation: parity, answers |
//! | `repair_job.rs` | repairs that consist of several transactions: scrub, rebuild, fence; changes of the array's state |
//! | `repair.rs` | one pass of a repair over one stripe |
//! | `unflushed.rs` | writes that no flush has followed, and what a flush does after a device's restart |
//! | `report.rs` | operations under way, for people |
//! | `overdue.rs` | operations that wait for too long |
//! | `control.rs` | the interface to the schemes |
//! | `server_locks.rs` | locks from the lock server: requested, registered, returned |
//! | `callback.rs` | locks that are kept until the server calls them back |
//! | `zero.rs`, `tso.rs`, `device_locks.rs` | a scheme's messages to devices |

mod callback;
mod changes;
mod control;
mod device_locks;
mod engine;
mod job;
mod overdue;
mod presence;
mod repair;
mod repair_job;
mod replies;
mod report;
mod server_locks;
mod tso;
mod unflushed;
mod zero;

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use rand::SeedableRng as _;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::message::{Reply, Request};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::{
    ArrayState, DeviceId, Epoch, HostAnswer, Layout, Life, OpError, OpId, Peer, Scheme, ServerId,
    ServerReply, ServerRequest, Stamp, Ticket, Time, Work,
};

use control::Control;
use device_locks::Patience;
use engine::{Later, Owner, Try};
use overdue::Owed;
use repair_job::RepairJob;
use server_locks::ServerLocks;
use unflushed::Unflushed;

pub use callback::GiveBack;

/// A host's configuration. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostConfig {
    /// This life of the host. A host that starts again has a larger incarnation.
    pub life: Life,
    /// How the hosts of this array keep out of each other's way.
    pub scheme: Scheme,
    /// How the array is laid out.
    pub layout: Layout,
    /// Devices without blocks that vote on the array's state; their ids follow those of the layout.
    pub witnesses: u16,
    /// The array's state as far as known; devices tell if it is newer.
    pub state: ArrayState,
    /// Devices answer writes when they will survive a power loss. Otherwise only a flush makes them durable.
    pub durable: bool,
    /// If half of a stripe's data units is written: read-modify-write rather than reconstruct-write (docs/design/array.md 1.2).
    pub delta_at_half: bool,
    /// How long a lock server or device trusts a silent host. The host renews long operations three times in this time.
    pub lease: Time,
    /// Callback locking: what goes back when some locks are called back.
    pub give_back: GiveBack,
    /// How long a device may owe an answer about blocks. Then operations that wait for it fail, and later ones at once. No
    /// operation takes more than twice as long. A device that restarts, or is given up, must take less. `Time::MAX`: they
    /// wait for ever.
    pub patience_with_devices: Time,
    /// Timestamp ordering: after so many rejections, writes have to wait for a read.
    pub starving_after: u32,
    /// Device-served locking: how long requests wait for locks before there is anything to derive it from.
    pub first_patience: Time,
    /// Device-served locking: the range of the derived time-out.
    pub patience: RangeInclusive<Time>,
    /// The upper bound of an operation's first back-off after a denied lock. Each further denial doubles it, up to 1024 times
    /// this. Otherwise many hosts on few blocks would deny each other everything.
    pub backoff: Time,
    /// A tolerance beyond the allowed lead of this host's timestamps over a device's clock. Within it, an operation waits;
    /// beyond it, the operation fails.
    pub clock_tolerance: Time,
    /// For back-off.
    pub seed: u64,
    /// A rule that is left out, to show that checks find it.
    #[cfg(feature = "mutations")]
    pub mutation: Option<Mutation>,
}

impl HostConfig {
    /// The defaults.
    pub fn new(life: Life, scheme: Scheme, layout: Layout, state: ArrayState) -> Self {
        const MS: Time = 1_000_000;
        HostConfig {
            life,
            scheme,
            layout,
            witnesses: 0,
            state,
            durable: true,
            delta_at_half: false,
            lease: 4_000 * MS,
            give_back: GiveBack::Called,
            patience_with_devices: 32_000 * MS,
            starving_after: 8,
            first_patience: 100 * MS,
            patience: 5 * MS..=2_000 * MS,
            backoff: 5 * MS,
            clock_tolerance: 1_000 * MS,
            seed: u64::from(life.host.0) ^ life.incarnation.rotate_left(32),
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

/// An input of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostInput {
    /// A piece of work. It is answered by one [`HostOutput::Done`], maybe at once.
    Submit {
        /// Names it.
        ticket: Ticket,
        /// The work to do.
        work: Work,
    },
    /// An answer has come.
    Reply {
        /// The sender.
        from: Peer,
        /// The reply.
        reply: Reply,
    },
    /// A lock server has said something. Its connection delivers in order, and nothing of an earlier one.
    Server {
        /// Which one.
        from: ServerId,
        /// The reply.
        reply: ServerReply,
    },
    /// There is a new connection to a lock server, or one has broken.
    ServerLink {
        /// Which one.
        server: ServerId,
    },
    /// There is a new connection to a peer. Its unanswered requests are sent again.
    Connected {
        /// Whom to.
        peer: Peer,
        /// Names the time since a device's start. A restarted device has another, and has forgotten its grants.
        boot: u64,
    },
    /// A connection has broken.
    Disconnected {
        /// Whom to.
        peer: Peer,
    },
    /// The array's state as it was learned elsewhere.
    State(ArrayState),
    /// Nothing more will be submitted: locks that are only kept go back, so that nobody has to call for them.
    Leave,
    /// [`ArrayHost::next_timer`] has come.
    Tick,
}

/// An output of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostOutput {
    /// Send a request. If there is no connection, it may be dropped: it is sent again when there is one.
    Send {
        /// Whom to.
        to: Peer,
        /// The request to the device.
        request: Request,
    },
    /// Send a request to a lock server, behind those before. If there is no connection, it may be dropped.
    SendServer {
        /// Which one.
        to: ServerId,
        /// The request to the lock server.
        request: ServerRequest,
    },
    /// A piece of work is done.
    Done {
        /// The ticket of the finished work.
        ticket: Ticket,
        /// The try that did it; none if it failed before there was one.
        op: Option<(OpId, Stamp)>,
        /// The result of the work.
        result: Result<HostAnswer, OpError>,
    },
    /// The host has learned of a newer state of the array.
    State(ArrayState),
    /// A device reports that its disk has failed. Operations wait for it until the array's state says so as well.
    Broken(DeviceId),
}

/// A host's counters since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostCounts {
    /// Pieces of work that were answered, failed ones included.
    pub done: u64,
    /// Those of them that waited for a conflicting lock or pre-write, or were started again (docs/design/array.md 2.5).
    pub delayed: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Requests sent, without leases and states of the array.
    pub requests: u64,
    /// Replies received, to these.
    pub replies: u64,
    /// Tries that were given up and started again.
    pub restarts: u64,
    /// Timestamp ordering: requests that were too late.
    pub rejected: u64,
    /// Device-served locking: requests that waited too long.
    pub denied: u64,
    /// Operations that were finished by a second try after a part of the first was written (docs/design/array.md 3.4).
    pub mended: u64,
    /// Leases renewed.
    pub leases: u64,
}

/// A host.
pub struct ArrayHost {
    config: HostConfig,
    state: ArrayState,
    control: Box<dyn Control>,
    locks: Option<ServerLocks>,
    patience: Patience,
    random: Xoshiro256PlusPlus,
    clock: Clock,
    next_seq: u64,
    tries: BTreeMap<u64, Try>,
    repair_jobs: BTreeMap<u64, RepairJob>,
    next_repair_job: u64,
    later: BTreeMap<(Time, u64), Later>,
    next_later: u64,
    heard_from_us: BTreeMap<Peer, Time>,
    /// When to look who should hear of this host again.
    renewal: Option<Time>,
    /// The states that devices were told, and have not answered yet.
    installing: BTreeMap<Peer, Epoch>,
    /// By which of its starts a device was last connected.
    boots: BTreeMap<Peer, u64>,
    unflushed: Unflushed,
    /// Devices that are to be told when the tries before this one have no unanswered writes there.
    settling: BTreeMap<Peer, u64>,
    owed: Owed,
    fenced: bool,
    counts: HostCounts,
    output: VecDeque<HostOutput>,
    /// The blocks that it has been asked to write as a whole, as [`Mutation::PatchesOwnCopy`] needs them.
    #[cfg(feature = "mutations")]
    own_copy: BTreeMap<u64, bytes::Bytes>,
}

/// Gives timestamps: unique, growing, and never behind what devices have seen (docs/design/array.md 2.4).
struct Clock {
    last: Time,
    /// By how much this host's clock is behind others', as answers have shown; less than zero if it is ahead. Nobody knows which clock
    /// is right. But a host whose timestamps are older than all others' would never have a turn.
    behind: i64,
    /// When the last timestamp was given.
    at: Time,
    host: u32,
}

/// A host goes back to its own clock by a part of the time that passes. Otherwise one fast clock would bring all hosts to the newest
/// timestamps that devices take, for ever.
const CLOCK_RETURNS: Time = 64;

impl Clock {
    fn stamp(&mut self, now: Time) -> Stamp {
        let passed = now.saturating_sub(std::mem::replace(&mut self.at, now));
        if self.behind > 0 {
            let back = (passed / CLOCK_RETURNS).min(self.behind.unsigned_abs());
            self.behind -= back.cast_signed();
        }
        self.last = now.saturating_add_signed(self.behind).max(self.last.saturating_add(1));
        Stamp { time: self.last, host: self.host }
    }

    /// No stamp that was given is newer.
    fn newest(&self) -> Time {
        self.last
    }

    fn learn(&mut self, seen: Time) {
        self.last = self.last.max(seen);
    }

    /// A device has seen a newer timestamp than one of this host. So others' clocks are ahead, and stay so.
    fn catch_up(&mut self, now: Time, seen: Time) {
        self.learn(seen);
        self.behind = self.behind.max(signed(seen, now));
    }

    /// A device takes nothing newer than `limit` yet. To wait alone would not help: this clock goes on as that one does.
    fn slow_down(&mut self, now: Time, limit: Time) {
        self.behind = self.behind.min(signed(limit, now));
    }
}

/// How much later one time is than another.
fn signed(time: Time, than: Time) -> i64 {
    time.wrapping_sub(than).cast_signed()
}

impl ArrayHost {
    /// A host that has not begun with anything.
    pub fn new(mut config: HostConfig) -> Self {
        config.layout = config.layout.grown(&config.state);
        ArrayHost {
            state: config.state.clone(),
            control: control::of(&config),
            locks: ServerLocks::of(&config),
            patience: Patience::new(config.first_patience, config.patience.clone()),
            random: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            clock: Clock { last: 0, behind: 0, at: 0, host: config.life.host.0 },
            next_seq: 1,
            tries: BTreeMap::new(),
            repair_jobs: BTreeMap::new(),
            next_repair_job: 0,
            later: BTreeMap::new(),
            next_later: 0,
            heard_from_us: BTreeMap::new(),
            renewal: None,
            installing: BTreeMap::new(),
            boots: BTreeMap::new(),
            unflushed: Unflushed::default(),
            settling: BTreeMap::new(),
            owed: Owed::default(),
            fenced: false,
            counts: HostCounts::default(),
            output: VecDeque::new(),
            #[cfg(feature = "mutations")]
            own_copy: BTreeMap::new(),
            config,
        }
    }

    /// Takes one step. `now` must not go back.
    pub fn handle(&mut self, now: Time, input: HostInput) {
        self.note_link(&input);
        match input {
            HostInput::Submit { ticket, work } => self.submit(now, ticket, work),
            HostInput::Reply { from, reply } => self.reply(now, from, reply),
            // The server's messages begin after the host has named itself.
            HostInput::ServerLink { server } => self.server_link(server),
            HostInput::Server { from, reply } => self.server_reply(now, from, reply),
            HostInput::Connected { peer, boot } => self.connected(now, peer, boot),
            HostInput::Disconnected { peer } => self.not_informed(now, peer),
            HostInput::State(state) => self.adopt(now, state),
            HostInput::Leave => self.leave(now),
            HostInput::Tick => {}
        }
        self.expire(now);
    }

    fn note_link(&mut self, input: &HostInput) {
        match *input {
            HostInput::Connected { peer, .. } => self.owed.connected(peer),
            HostInput::Disconnected { peer } => self.owed.disconnected(peer),
            _ => {}
        }
    }

    /// The next output, in order; call until it returns `None`.
    pub fn poll(&mut self) -> Option<HostOutput> {
        self.output.pop_front()
    }

    /// When [`HostInput::Tick`] is due; the past if it is overdue.
    pub fn next_timer(&self) -> Option<Time> {
        let later = self.later.keys().next().map(|(time, _)| *time);
        let locks = self.locks.as_ref().and_then(ServerLocks::next_timer);
        later.into_iter().chain(self.renewal).chain(locks).chain(self.owed.next_timer()).min()
    }

    /// The host's own life.
    pub fn life(&self) -> Life {
        self.config.life
    }

    /// Returns true if others have taken this life for dead: nothing that it asks for has an effect any more.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// The array's state as far as known.
    pub fn state(&self) -> &ArrayState {
        &self.state
    }

    /// How the array is laid out by the state that this host knows.
    pub fn layout(&self) -> &Layout {
        &self.config.layout
    }

    /// The piece of work of a try, as long as the work waits for it.
    pub fn ticket(&self, op: OpId) -> Option<Ticket> {
        let this = self.tries.get(&op.seq).filter(|this| this.id == op)?;
        match this.task.as_ref()?.owner {
            Owner::Caller(ticket) | Owner::Answered(ticket) => Some(ticket),
            Owner::RepairJob(_) | Owner::Own => None,
        }
    }

    /// The counters since the start.
    pub fn counts(&self) -> HostCounts {
        self.counts
    }

    /// Returns true if the host has no work and waits for no device's answer.
    pub fn is_idle(&self) -> bool {
        let locked = self.locks.as_ref().is_some_and(|locks| !locks.is_idle());
        self.tries.is_empty() && self.repair_jobs.is_empty() && self.later.is_empty() && !locked
    }

    /// Returns true if a device may yet do a write that this host has sent it. What else is unanswered changes no block.
    pub fn has_unanswered_writes(&self) -> bool {
        let mut siblings = self.tries.values().flat_map(|this| &this.siblings);
        siblings.any(|sibling| sibling.out.is_some() && sibling.blocks.is_some())
    }

    #[cfg(feature = "mutations")]
    fn mutated(&self, mutation: Mutation) -> bool {
        self.config.mutation == Some(mutation)
    }

    /// A write of whole blocks in place of a patch, if the host has written these blocks before.
    #[cfg(feature = "mutations")]
    fn with_own_copy(&mut self, work: Work) -> Work {
        if !self.mutated(Mutation::PatchesOwnCopy) {
            return work;
        }
        let Some(Ok(new)) = job::New::of(&self.config.layout, &work) else { return work };
        let old = (new.span.start..new.span.end()).map(|block| self.own_copy.get(&block).cloned());
        let Some(data) = new.over(old.collect::<Option<Vec<_>>>()) else { return work };
        let size = self.config.layout.block_size as usize;
        for (at, block) in (0..).zip(new.span.start..new.span.end()) {
            self.own_copy.insert(block, data.slice(at * size..(at + 1) * size));
        }
        Work::Write { span: new.span, data }
    }
}
