//! One process's connection to corosync.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};

use crate::api::{
    Api, CPG_NAME, CmapValue, CpgAddress, CpgModel, CpgName, Handle, IoVec, QuorumModel, Ring, api,
};
use crate::error::{Error, check};
use crate::nodes::{self, Nodes};

/// The longest message that [`Session::cast`] takes, in bytes: what fits into corosync's buffer
/// for one client (1 MiB) with its head.
pub const MAX_MESSAGE: usize = 1_000_000;

const CPG_MODEL_V1: c_int = 1;
const CPG_INITIAL_RING: u32 = 1;
const CPG_TYPE_AGREED: c_int = 2;
const QUORUM_MODEL_V1: c_int = 1;
const QUORUM_SET: u32 = 1;
const TRACK_CURRENT_AND_CHANGES: u32 = 0x01 | 0x02;
const DISPATCH_ALL: c_int = 2;
/// ADD, DELETE and MODIFY of everything below the name.
const CMAP_TRACK_ALL: i32 = 4 | 1 | 2 | 8;

/// A member of the group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Process {
    /// Corosync's id of its node.
    pub node: u32,
    /// Its process there.
    pub pid: u32,
}

/// Why a process is in the group no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// It left.
    Left,
    /// Its node is in another ring, or in none.
    NodeDown,
    /// Its connection to its node's corosync has ended, as when the process does.
    ProcessDown,
}

/// A ring: one period of the cluster's membership.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct RingId {
    /// Grows with every ring.
    pub seq: u64,
    /// The node that formed it.
    pub node: u32,
}

/// An event of corosync.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The group's members, in the one order with its messages.
    Members {
        /// All members.
        members: Vec<Process>,
        /// The members that have left, and why.
        left: Vec<(Process, Reason)>,
        /// The new members.
        joined: Vec<Process>,
    },
    /// From here on, messages and members are those of this ring.
    Ring(RingId),
    /// The cluster's quorum; not in one order with the other events: compare the ring.
    Quorum {
        /// It has quorum.
        quorate: bool,
        /// Since, or still in, this ring.
        ring: RingId,
        /// The nodes of that ring.
        nodes: Vec<u32>,
    },
    /// A message of the group, in the one order; a member's own ones, too.
    Message {
        /// The sender.
        from: Process,
        /// The content.
        bytes: Vec<u8>,
    },
    /// The list of nodes has changed: read it again.
    Nodes,
}

/// Where callbacks write, while [`Session::dispatch`] runs.
#[derive(Default)]
struct Inbox {
    events: RefCell<Vec<Event>>,
}

/// A connection to the corosync daemon of this node and membership of one group. It must be
/// polled at its [`Session::fds`] and dispatched then.
pub struct Session {
    api: &'static Api,
    cpg: Option<Handle>,
    quorum: Option<Handle>,
    cmap: Option<Handle>,
    me: u32,
    /// Its address is corosync's context; it must not move.
    inbox: Box<Inbox>,
}

impl Session {
    /// Connects; no member of a group yet.
    ///
    /// # Errors
    /// [`Error`]; a [temporary](Error::is_temporary) one means to try again.
    pub fn open() -> Result<Session, Error> {
        let api = api()?;
        let inbox = Box::<Inbox>::default();
        let mut session = Session { api, cpg: None, quorum: None, cmap: None, me: 0, inbox };
        session.open_cpg()?;
        session.open_cmap()?;
        Ok(session)
    }

    fn context(&self) -> *mut c_void {
        std::ptr::from_ref::<Inbox>(&self.inbox).cast_mut().cast()
    }

    fn open_cpg(&mut self) -> Result<(), Error> {
        let mut model =
            CpgModel { model: CPG_MODEL_V1, deliver, confchg, totem, flags: CPG_INITIAL_RING };
        let mut cpg = 0;
        // SAFETY: the model is copied; the context lives as long as the handle (Drop ends both).
        let code = unsafe {
            (self.api.cpg_model_initialize)(&mut cpg, CPG_MODEL_V1, &mut model, self.context())
        };
        check("cpg_model_initialize", code)?;
        self.cpg = Some(cpg);
        // SAFETY: `me` is a live variable.
        check("cpg_local_get", unsafe { (self.api.cpg_local_get)(cpg, &mut self.me) })
    }

    fn open_quorum(&mut self) -> Result<(), Error> {
        let mut model = QuorumModel { model: QUORUM_MODEL_V1, quorum: quorum_notify, nodes: None };
        let (mut quorum, mut kind) = (0, 0);
        // SAFETY: as for cpg.
        let code = unsafe {
            (self.api.quorum_model_initialize)(
                &mut quorum,
                QUORUM_MODEL_V1,
                &mut model,
                &mut kind,
                self.context(),
            )
        };
        check("quorum_model_initialize", code)?;
        self.quorum = Some(quorum);
        if kind != QUORUM_SET {
            return Err(Error::Setup(
                "corosync has no quorum provider: set `quorum { provider: corosync_votequorum }` \
                 in corosync.conf"
                    .into(),
            ));
        }
        // SAFETY: the handle is open.
        let code = unsafe { (self.api.quorum_trackstart)(quorum, TRACK_CURRENT_AND_CHANGES) };
        check("quorum_trackstart", code)
    }

    fn open_cmap(&mut self) -> Result<(), Error> {
        let mut cmap = 0;
        // SAFETY: `cmap` is a live variable.
        check("cmap_initialize", unsafe { (self.api.cmap_initialize)(&mut cmap) })?;
        self.cmap = Some(cmap);
        let mut track = 0;
        // SAFETY: the name ends with a zero; the context is as for cpg.
        let code = unsafe {
            (self.api.cmap_track_add)(
                cmap,
                c"nodelist.".as_ptr(),
                CMAP_TRACK_ALL,
                cmap_notify,
                self.context(),
                &mut track,
            )
        };
        check("cmap_track_add", code)
    }

    /// Joins a group (1 to 128 bytes) and begins to watch the quorum; its members, ring and
    /// quorum follow as events.
    ///
    /// # Errors
    /// [`Error`]; of a temporary one the call can be repeated.
    pub fn join(&mut self, group: &str) -> Result<(), Error> {
        let name = group_name(group)?;
        if self.quorum.is_none() {
            self.open_quorum()?;
        }
        // SAFETY: the handle is open, the name a live variable.
        let code = unsafe { (self.api.cpg_join)(self.cpg.unwrap_or(0), &name) };
        check("cpg_join", code)
    }

    /// Leaves the group.
    ///
    /// # Errors
    /// [`Error`].
    pub fn leave(&mut self, group: &str) -> Result<(), Error> {
        let name = group_name(group)?;
        // SAFETY: as in `join`.
        let code = unsafe { (self.api.cpg_leave)(self.cpg.unwrap_or(0), &name) };
        check("cpg_leave", code)
    }

    /// This node's id.
    pub fn me(&self) -> u32 {
        self.me
    }

    /// Reads the list of nodes.
    ///
    /// # Errors
    /// [`Error`].
    pub fn nodes(&self) -> Result<Nodes, Error> {
        nodes::read(self.api, self.cmap.unwrap_or(0), self.me)
    }

    /// Sends a message to every member of the group, this one included, in the one order.
    ///
    /// # Errors
    /// [`Error`]; a temporary one means to try again after the next ring, or soon.
    pub fn cast(&self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > MAX_MESSAGE {
            let text = format!("a message of {} bytes, where {MAX_MESSAGE} fit", bytes.len());
            return Err(Error::Setup(text));
        }
        let part = IoVec { base: bytes.as_ptr().cast(), len: bytes.len() };
        // SAFETY: one part, which is alive; it is copied.
        let code = unsafe {
            (self.api.cpg_mcast_joined)(self.cpg.unwrap_or(0), CPG_TYPE_AGREED, &part, 1)
        };
        check("cpg_mcast_joined", code)
    }

    /// The descriptors to poll for reading.
    ///
    /// # Errors
    /// [`Error`].
    pub fn fds(&self) -> Result<Vec<BorrowedFd<'_>>, Error> {
        let mut fds = Vec::new();
        let asked = [
            ("cpg_fd_get", self.cpg, self.api.cpg_fd_get),
            ("quorum_fd_get", self.quorum, self.api.quorum_fd_get),
            ("cmap_fd_get", self.cmap, self.api.cmap_fd_get),
        ];
        for (call, handle, get) in asked {
            let Some(handle) = handle else { continue };
            let mut fd = -1;
            // SAFETY: the handle is open, `fd` a live variable.
            check(call, unsafe { get(handle, &mut fd) })?;
            // SAFETY: the descriptor is the handle's, which outlives the borrow of `self`.
            fds.push(unsafe { BorrowedFd::borrow_raw(fd) });
        }
        Ok(fds)
    }

    /// Takes everything that is there, without waiting for more.
    ///
    /// # Errors
    /// [`Error`]: the connection is of no more use. What came before is in `events`.
    pub fn dispatch(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        let asked = [
            // Quorum first: a lost one should be known before members that are gone.
            ("quorum_dispatch", self.quorum, self.api.quorum_dispatch),
            ("cpg_dispatch", self.cpg, self.api.cpg_dispatch),
            ("cmap_dispatch", self.cmap, self.api.cmap_dispatch),
        ];
        let mut result = Ok(());
        for (call, handle, dispatch) in asked {
            let Some(handle) = handle else { continue };
            // SAFETY: the handle is open; callbacks only write to the inbox, which is alive.
            let dispatched = check(call, unsafe { dispatch(handle, DISPATCH_ALL) });
            if let Err(e) = dispatched
                && !e.is_temporary()
            {
                result = result.and(Err(e));
            }
        }
        events.append(&mut self.inbox.events.borrow_mut());
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: each handle is open, and not used again. A connection that broke is closed all
        // the same.
        unsafe {
            if let Some(cpg) = self.cpg.take() {
                (self.api.cpg_finalize)(cpg);
            }
            if let Some(quorum) = self.quorum.take() {
                (self.api.quorum_finalize)(quorum);
            }
            if let Some(cmap) = self.cmap.take() {
                (self.api.cmap_finalize)(cmap);
            }
        }
    }
}

fn group_name(group: &str) -> Result<CpgName, Error> {
    let mut name = CpgName { length: group.len() as u32, value: [0; CPG_NAME] };
    if group.is_empty() || group.len() > CPG_NAME {
        let text = format!("a group's name has 1 to {CPG_NAME} bytes, not {}", group.len());
        return Err(Error::Setup(text));
    }
    name.value[..group.len()].copy_from_slice(group.as_bytes());
    Ok(name)
}

/// A C array, which may be null if it is empty.
///
/// # Safety
/// `list` points to `len` values that live as long as the result.
unsafe fn slice<'a, T>(list: *const T, len: usize) -> &'a [T] {
    if list.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(list, len) }
}

fn process(a: &CpgAddress) -> Process {
    Process { node: a.nodeid, pid: a.pid }
}

/// `cpg_reason_t`; the others do not occur in the list of who left.
fn reason(a: &CpgAddress) -> Reason {
    match a.reason {
        2 => Reason::Left,
        5 => Reason::ProcessDown,
        _ => Reason::NodeDown,
    }
}

/// Writes an event into the inbox of a cpg handle.
fn post_cpg(handle: Handle, event: Event) {
    let Ok(api) = api() else { return };
    let mut context: *mut c_void = null_mut();
    // SAFETY: `context` is a live variable.
    if check("", unsafe { (api.cpg_context_get)(handle, &mut context) }).is_ok() {
        post(context, event);
    }
}

fn post(context: *const c_void, event: Event) {
    // SAFETY: a context is null or a live inbox: `Session` gives no other, and outlives its
    // handles. Callbacks run in `dispatch` only, where nothing else borrows it.
    if let Some(inbox) = unsafe { context.cast::<Inbox>().as_ref() } {
        inbox.events.borrow_mut().push(event);
    }
}

unsafe extern "C" fn deliver(
    handle: Handle,
    _group: *const CpgName,
    node: u32,
    pid: u32,
    message: *mut c_void,
    len: usize,
) {
    // SAFETY: corosync gives the message and its length.
    let bytes = unsafe { slice(message.cast_const().cast::<u8>(), len) }.to_vec();
    post_cpg(handle, Event::Message { from: Process { node, pid }, bytes });
}

unsafe extern "C" fn confchg(
    handle: Handle,
    _group: *const CpgName,
    members: *const CpgAddress,
    members_len: usize,
    left: *const CpgAddress,
    left_len: usize,
    joined: *const CpgAddress,
    joined_len: usize,
) {
    // SAFETY: corosync gives three lists and their lengths.
    let (members, left, joined) =
        unsafe { (slice(members, members_len), slice(left, left_len), slice(joined, joined_len)) };
    let event = Event::Members {
        members: members.iter().map(process).collect(),
        left: left.iter().map(|a| (process(a), reason(a))).collect(),
        joined: joined.iter().map(process).collect(),
    };
    post_cpg(handle, event);
}

unsafe extern "C" fn totem(handle: Handle, ring: Ring, _len: u32, _members: *const u32) {
    post_cpg(handle, Event::Ring(RingId { seq: ring.seq, node: ring.nodeid }));
}

unsafe extern "C" fn quorum_notify(
    handle: Handle,
    quorate: u32,
    ring: Ring,
    len: u32,
    members: *const u32,
) {
    let Ok(api) = api() else { return };
    let mut context: *const c_void = null();
    // SAFETY: `context` is a live variable.
    if check("", unsafe { (api.quorum_context_get)(handle, &mut context) }).is_ok() {
        let ring = RingId { seq: ring.seq, node: ring.nodeid };
        let nodes = match members.is_null() {
            true => Vec::new(),
            // SAFETY: libquorum's list of this length, which it keeps for the length of this call.
            false => unsafe { std::slice::from_raw_parts(members, len as usize) }.to_vec(),
        };
        post(context, Event::Quorum { quorate: quorate != 0, ring, nodes });
    }
}

unsafe extern "C" fn cmap_notify(
    _handle: Handle,
    _track: Handle,
    _event: i32,
    _key: *const c_char,
    _new: CmapValue,
    _old: CmapValue,
    context: *mut c_void,
) {
    post(context, Event::Nodes);
}
