//! A device with what an end needs of it: memory, a queue of completions, queue pairs.
#![allow(unsafe_code, reason = "a library in C is called, and memory is shared with a device")]

use core::ffi::{CStr, c_int, c_uint, c_void};
use core::mem::zeroed;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use lockify_onesided::{MESSAGE_WORDS, Message, Verb};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::api::{self, Api, access, mask, opcode, send, state};
use super::card::{Card, CardPair};
use super::endpoint::Endpoint;
use super::error::VerbsError;
use super::{RECEIVES, SENDS, Settings};

/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 8 * MESSAGE_WORDS;

/// A device that is open. What is made of it keeps it open.
pub(super) struct Device {
    api: &'static Api,
    name: String,
    context: *mut api::Context,
    pd: *mut api::Opaque,
    channel: *mut api::Channel,
    cq: *mut api::Cq,
    attr: api::DeviceAttr,
    port: api::PortAttr,
    gid: Gid,
    settings: Settings,
}

#[derive(Clone, Copy)]
struct Gid {
    index: u8,
    gid: [u64; 2],
}

impl Device {
    /// Opens the device that the settings name, or the first one.
    pub fn open(settings: &Settings) -> Result<Rc<Device>, VerbsError> {
        let api = Api::get()?;
        let (name, context) = open_context(api, settings.device.as_deref())?;
        // From here on dropping it closes what there is.
        let mut device = Device {
            api,
            name,
            context,
            pd: null_mut(),
            channel: null_mut(),
            cq: null_mut(),
            // SAFETY: all bits zero are values of these types.
            attr: unsafe { zeroed() },
            // SAFETY: as above.
            port: unsafe { zeroed() },
            gid: Gid { index: 0, gid: [0; 2] },
            settings: settings.clone(),
        };
        device.look()?;
        device.gid = device.find_gid()?;
        device.make()?;
        Ok(Rc::new(device))
    }

    /// Asks what it can do.
    fn look(&mut self) -> Result<(), VerbsError> {
        // SAFETY: the context is open, and the attributes are as large as the header says.
        let asked = unsafe { (self.api.query_device)(self.context, &mut self.attr) };
        self.done("asking what it can do", asked)?;
        let port = self.settings.port;
        // SAFETY: as above; the library's function fills less than there is room for.
        let asked = unsafe { (self.api.query_port)(self.context, port, &mut self.port) };
        self.done("asking for its port (--rdma-port)", asked)?;
        if self.attr.atomic_cap == 0 {
            return Err(self.unfit("has no atomics (iWARP has none): choose another device"));
        }
        if self.port.state != api::PORT_ACTIVE {
            let what = format!("has no link on port {port}: connect it, or set its interface up");
            return Err(self.unfit(&what));
        }
        Ok(())
    }

    /// On Ethernet, an address of RoCE v2; of IPv4, if there is one.
    fn find_gid(&self) -> Result<Gid, VerbsError> {
        let entry = |index: u32| {
            // SAFETY: all bits zero are a value.
            let mut entry: api::GidEntry = unsafe { zeroed() };
            let port = u32::from(self.settings.port);
            // SAFETY: the context is open; the size is that of the entry.
            let asked = unsafe {
                (self.api.query_gid_ex)(
                    self.context,
                    port,
                    index,
                    &mut entry,
                    0,
                    size_of::<api::GidEntry>(),
                )
            };
            (asked == 0 && entry.gid != [0; 2]).then_some(entry)
        };
        let found =
            |index: u32, gid: [u64; 2]| u8::try_from(index).ok().map(|index| Gid { index, gid });
        if let Some(index) = self.settings.gid_index {
            let gid = entry(index.into()).and_then(|entry| found(index.into(), entry.gid));
            let what = format!(
                "has no address (GID) with index {index}: see `rdma link`, `ibv_devinfo -v`"
            );
            return gid.ok_or_else(|| self.unfit(&what));
        }
        let all = 0..u32::try_from(self.port.gid_tbl_len).unwrap_or(0).min(256);
        if self.port.link_layer != api::ETHERNET {
            return Ok(entry(0)
                .and_then(|e| found(0, e.gid))
                .unwrap_or(Gid { index: 0, gid: [0; 2] }));
        }
        let routable = all.filter_map(|index| Some((index, entry(index)?)));
        let routable: Vec<_> = routable.filter(|(_, e)| e.gid_type == api::ROCE_V2).collect();
        let is_v4 = |gid: &[u64; 2]| gid[0] == 0 && gid[1].to_ne_bytes()[..4] == [0, 0, 0xff, 0xff];
        let best = routable.iter().find(|(_, e)| is_v4(&e.gid)).or(routable.first());
        best.and_then(|(index, entry)| found(*index, entry.gid)).ok_or_else(|| {
            self.unfit("has no address of RoCE v2: give its network interface an IP address")
        })
    }

    fn make(&mut self) -> Result<(), VerbsError> {
        // SAFETY: the context is open.
        self.pd = unsafe { (self.api.alloc_pd)(self.context) };
        self.made("making a protection domain", self.pd)?;
        // SAFETY: the context is open.
        self.channel = unsafe { (self.api.create_comp_channel)(self.context) };
        self.made("making a completion channel", self.channel)?;
        // SAFETY: the library has just made it.
        let fd = unsafe { BorrowedFd::borrow_raw((*self.channel).fd) };
        let unblocked = rustix::io::ioctl_fionbio(fd, true).map_err(io::Error::from);
        unblocked.map_err(|e| VerbsError::system(&self.name, "asking for events", &e))?;
        let entries = u64::from(self.settings.peers) * u64::from(SENDS + RECEIVES);
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        if entries > self.attr.max_cqe || c_int::from(self.settings.peers) > self.attr.max_qp {
            let most = (self.attr.max_cqe / (SENDS + RECEIVES) as c_int).min(self.attr.max_qp);
            let what = format!("has room for connections with {most} peers at most: ask for fewer");
            return Err(self.unfit(&what));
        }
        // SAFETY: the context is open, and the channel is of it.
        self.cq =
            unsafe { (self.api.create_cq)(self.context, entries, null_mut(), self.channel, 0) };
        self.made("making a completion queue", self.cq)
    }

    fn unfit(&self, what: &str) -> VerbsError {
        VerbsError::Unfit { device: self.name.clone(), what: what.to_owned() }
    }

    /// The result of a function that returns an error's number.
    fn done(&self, what: &'static str, result: c_int) -> Result<(), VerbsError> {
        match result {
            0 => Ok(()),
            error => {
                // Some return the number, some set it.
                let number = if error > 0 { error } else { last_errno() };
                let error = io::Error::from_raw_os_error(number);
                Err(VerbsError::system(&self.name, what, &error))
            }
        }
    }

    /// The result of a function that returns null and sets the error's number.
    fn made<T>(&self, what: &'static str, made: *mut T) -> Result<(), VerbsError> {
        if made.is_null() { self.done(what, -1) } else { Ok(()) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// As [`Card::endpoint`].
    fn endpoint(&self, pair: &Pair, psn: u32, taken: u64) -> Endpoint {
        Endpoint {
            ethernet: self.port.link_layer == api::ETHERNET,
            lid: self.port.lid,
            gid: self.gid.gid.map(u64::to_ne_bytes),
            pair: pair.number(),
            psn: psn & 0xff_ffff,
            mtu: self.port.active_mtu.clamp(1, 5) as u8,
            reads: self.attr.max_qp_rd_atom.clamp(1, 16) as u8,
            taken,
        }
    }

    /// As [`Card::completions`].
    fn completions(&self, mut each: impl FnMut(Completion)) -> Result<bool, VerbsError> {
        // SAFETY: all bits zero are values.
        let mut found: [api::Wc; 16] = unsafe { zeroed() };
        // SAFETY: the queue is of a context that is open, and there is room for as many.
        let Some(poll) = (unsafe { (*self.context).poll_cq }) else {
            return Err(self.unfit("cannot be polled: its driver is broken"));
        };
        let mut any = false;
        loop {
            // SAFETY: as above.
            let count = unsafe { poll(self.cq, found.len() as c_int, found.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else {
                return self.done("polling", count).map(|()| any);
            };
            for wc in found.iter().take(count) {
                any = true;
                each(Completion { id: wc.wr_id, status: wc.status, bytes: wc.byte_len });
            }
            if count < found.len() {
                return Ok(any);
            }
        }
    }

    /// Has the next completion make [`Device::bell`] readable. Completions that came before do not.
    pub fn arm(&self) {
        // SAFETY: the queue is of a context that is open.
        if let Some(arm) = unsafe { (*self.context).req_notify_cq } {
            // SAFETY: as above. It fails for queues without a channel only.
            unsafe { arm(self.cq, 0) };
        }
    }

    /// What becomes readable with a completion after [`Device::arm`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as the device.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// Takes what has made the bell readable.
    pub fn silence(&self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel lives, and does not block.
        while unsafe { (self.api.get_cq_event)(self.channel, &mut cq, &mut context) } == 0 {
            // SAFETY: the library has just named it.
            unsafe { (self.api.ack_cq_events)(cq, 1) };
        }
    }
}

impl Card for Rc<Device> {
    type Pair = Pair;

    fn name(&self) -> &str {
        Device::name(self)
    }

    fn pair(&self) -> Result<Pair, VerbsError> {
        Pair::new(self)
    }

    fn endpoint(&self, pair: &Pair, psn: u32, taken: u64) -> Endpoint {
        Device::endpoint(self, pair, psn, taken)
    }

    fn completions(&self, each: impl FnMut(Completion)) -> Result<bool, VerbsError> {
        Device::completions(self, each)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: each was made, or is null; pairs and memory hold this device, so none is left. What fails leaves
        // something open until the process ends.
        unsafe {
            if !self.cq.is_null() {
                (self.api.destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (self.api.destroy_comp_channel)(self.channel);
            }
            if !self.pd.is_null() {
                (self.api.dealloc_pd)(self.pd);
            }
            (self.api.close_device)(self.context);
        }
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn open_context(
    api: &Api,
    wanted: Option<&str>,
) -> Result<(String, *mut api::Context), VerbsError> {
    let mut count = 0;
    // SAFETY: it fills the number of entries.
    let list = unsafe { (api.get_device_list)(&mut count) };
    if list.is_null() {
        let error = io::Error::last_os_error();
        // That is what it says where the kernel has no verbs at all.
        return Err(match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::NOSYS.raw_os_error() => VerbsError::NoDevice,
            _ => VerbsError::system("libibverbs", "listing devices", &error),
        });
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the list has so many entries.
    let devices = unsafe { core::slice::from_raw_parts(list, count) };
    let name = |device: &*mut api::Opaque| {
        // SAFETY: the device is in the list; its name is a string that lives as long.
        let name = unsafe { CStr::from_ptr((api.get_device_name)(*device)) };
        name.to_string_lossy().into_owned()
    };
    let chosen = devices.iter().find(|device| wanted.is_none_or(|wanted| name(device) == wanted));
    let opened = match (chosen, wanted) {
        (Some(device), _) => {
            // SAFETY: the device is in the list, which is not freed yet.
            let context = unsafe { (api.open_device)(*device) };
            let name = name(device);
            if context.is_null() {
                let error = io::Error::last_os_error();
                Err(VerbsError::system(&name, "opening the device", &error))
            } else {
                Ok((name, context))
            }
        }
        (None, Some(wanted)) if count > 0 => {
            let there = devices.iter().map(name).collect();
            Err(VerbsError::NoSuchDevice { wanted: wanted.to_owned(), there })
        }
        (None, _) => Err(VerbsError::NoDevice),
    };
    // SAFETY: the list is the library's; what was opened of it stays.
    unsafe { (api.free_device_list)(list) };
    opened
}

/// What has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    /// As it was posted.
    pub id: u64,
    pub status: u32,
    pub bytes: u32,
}

/// Zeroed memory that the device may use.
pub(super) struct Memory {
    device: Rc<Device>,
    start: NonNull<c_void>,
    bytes: usize,
    mr: *mut api::Mr,
}

impl Memory {
    /// Memory of this end; with `shared`, others may use it by its key, at addresses from 0 on.
    pub fn new(device: &Rc<Device>, bytes: usize, shared: bool) -> Result<Memory, VerbsError> {
        let failed =
            |e: rustix::io::Errno| VerbsError::system(&device.name, "allocating memory", &e.into());
        let (protection, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the system chooses a place that nothing else uses. Anonymous memory: a device cannot use every file's.
        let start = unsafe { mmap_anonymous(null_mut(), bytes, protection, private) };
        let start = start.map_err(failed)?;
        let start = NonNull::new(start).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let rights = match shared {
            true => access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
            false => 0,
        };
        let rights = (access::LOCAL_WRITE | rights) as c_int;
        // SAFETY: the memory is there until the registration ends, see `drop`.
        let mr = unsafe { (device.api.reg_mr_iova)(device.pd, start.as_ptr(), bytes, 0, rights) };
        let error = io::Error::last_os_error();
        let memory = Memory { device: Rc::clone(device), start, bytes, mr };
        if mr.is_null() {
            return Err(VerbsError::system(&device.name, "registering memory", &error));
        }
        Ok(memory)
    }

    pub fn key(&self) -> u32 {
        // SAFETY: it is registered.
        unsafe { (*self.mr).rkey }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// What the device has put into a word; `None` if there is no such word.
    fn word(&self, index: usize) -> Option<u64> {
        let at = index.checked_mul(8).filter(|at| at + 8 <= self.bytes)?;
        // SAFETY: it is inside and aligned. The device has written it before it said so; nothing of this process
        // writes there.
        let word = unsafe { &*self.start.as_ptr().cast::<u8>().add(at).cast::<AtomicU64>() };
        Some(word.load(Relaxed))
    }

    fn piece(&self, index: usize, bytes: usize) -> api::Sge {
        // SAFETY: it is registered. Addresses count from 0.
        let lkey = unsafe { (*self.mr).lkey };
        api::Sge { addr: (index * 8) as u64, length: bytes as u32, lkey }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the registration ends before its memory. If it does not, the memory stays.
        unsafe {
            if self.mr.is_null() || (self.device.api.dereg_mr)(self.mr) == 0 {
                let _ = munmap(self.start.as_ptr(), self.bytes);
            }
        }
    }
}

/// A queue pair of a reliable connection, with the memory for what comes back: first the results of verbs, a word each,
/// then the messages.
pub(super) struct Pair {
    device: Rc<Device>,
    qp: *mut api::Qp,
    memory: Memory,
}

/// Where a verb goes.
pub(super) struct Target {
    pub offset: u64,
    pub key: u32,
}

impl Pair {
    /// As [`Card::pair`].
    fn new(device: &Rc<Device>) -> Result<Pair, VerbsError> {
        let words = SENDS as usize + RECEIVES as usize * MESSAGE_WORDS;
        let memory = Memory::new(device, words * 8, false)?;
        let cap = api::QpCap {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: MESSAGE_BYTES as u32,
        };
        let mut attr = api::QpInitAttr {
            qp_context: null_mut(),
            send_cq: device.cq,
            recv_cq: device.cq,
            srq: null_mut(),
            cap,
            qp_type: api::RC,
            sq_sig_all: 1,
        };
        // SAFETY: domain and queue are of the device.
        let qp = unsafe { (device.api.create_qp)(device.pd, &mut attr) };
        device.made("making a queue pair", qp)?;
        let pair = Pair { device: Rc::clone(device), qp, memory };
        let rights = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
        let attr = api::QpAttr {
            qp_state: state::INIT,
            port_num: device.settings.port,
            qp_access_flags: rights,
            ..empty()
        };
        let wanted = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        pair.modify("preparing a queue pair", attr, wanted)?;
        Ok(pair)
    }

    /// Its number on the device, which the other end names.
    fn number(&self) -> u32 {
        // SAFETY: it was made.
        unsafe { (*self.qp).qp_num }
    }

    fn modify(
        &self,
        what: &'static str,
        mut attr: api::QpAttr,
        wanted: u32,
    ) -> Result<(), VerbsError> {
        // SAFETY: the pair lives, and the attributes are whole.
        let done = unsafe { (self.device.api.modify_qp)(self.qp, &mut attr, wanted as c_int) };
        self.device.done(what, done)
    }

    fn hand_over(
        &self,
        id: u64,
        opcode: c_uint,
        flags: c_uint,
        mut piece: api::Sge,
        wr: api::Remote,
    ) -> Result<(), VerbsError> {
        let mut request = api::SendWr {
            wr_id: id,
            next: null_mut(),
            sg_list: &mut piece,
            num_sge: 1,
            opcode,
            send_flags: flags | send::SIGNALED,
            imm_data: 0,
            wr,
            xrc: 0,
            rest: [0; 6],
        };
        let mut bad = null_mut();
        // SAFETY: the pair and its context live.
        let Some(post) = (unsafe { (*(*self.qp).context).post_send }) else {
            return Err(self.device.unfit("takes no work: its driver is broken"));
        };
        // SAFETY: the request and what it points to live until the call has copied them; what is written to later is
        // this pair's memory.
        self.device.done("posting a verb", unsafe { post(self.qp, &mut request, &mut bad) })
    }
}

impl CardPair for Pair {
    fn connect(&self, to: &Endpoint, psn: u32) -> Result<(), VerbsError> {
        let device = &self.device;
        if to.ethernet != (device.port.link_layer == api::ETHERNET) {
            let what = "is on another kind of network than its peer (InfiniBand, Ethernet)";
            return Err(device.unfit(&format!("{what}: name devices of one network")));
        }
        // Settings of one end only: the other's may be smaller.
        let mtu = u32::from(to.mtu).clamp(1, device.port.active_mtu.clamp(1, 5));
        let ah_attr = api::AhAttr {
            dgid: to.gid.map(u64::from_ne_bytes),
            sgid_index: device.gid.index,
            hop_limit: 64,
            dlid: to.lid,
            is_global: u8::from(to.ethernet),
            port_num: device.settings.port,
            ..empty().ah_attr
        };
        let attr = api::QpAttr {
            qp_state: state::RTR,
            path_mtu: mtu,
            dest_qp_num: to.pair,
            rq_psn: to.psn & 0xff_ffff,
            max_dest_rd_atomic: device.attr.max_qp_rd_atom.clamp(1, 16) as u8,
            min_rnr_timer: RNR_TIMER,
            ah_attr,
            ..empty()
        };
        let wanted = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        self.modify("connecting a queue pair", attr, wanted)?;
        let reads = device.attr.max_qp_init_rd_atom.clamp(1, 16) as u8;
        let attr = api::QpAttr {
            qp_state: state::RTS,
            sq_psn: psn & 0xff_ffff,
            timeout: device.settings.ack_timeout,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            max_rd_atomic: reads.min(to.reads.max(1)),
            ..empty()
        };
        let wanted = mask::STATE
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::SQ_PSN
            | mask::MAX_QP_RD_ATOMIC;
        self.modify("starting a queue pair", attr, wanted)
    }

    fn post(&self, id: u64, to: &Target, verb: Verb, place: usize) -> Result<(), VerbsError> {
        let mut word = if let Verb::Write(value) = verb { value } else { 0 };
        let mut piece = self.memory.piece(place, 8);
        let (offset, key) = (to.offset, to.key);
        let rdma = api::Remote { rdma: api::Rdma { remote_addr: offset, rkey: key } };
        let atomic = |compare_add, swap| api::Remote {
            atomic: api::Atomic { remote_addr: offset, compare_add, swap, rkey: key },
        };
        let (opcode, flags, wr) = match verb {
            Verb::Read => (opcode::RDMA_READ, 0, rdma),
            Verb::Write(_) => {
                piece.addr = core::ptr::from_mut(&mut word).expose_provenance() as u64;
                (opcode::RDMA_WRITE, send::INLINE, rdma)
            }
            Verb::CompareAndSwap { expected, new } => {
                (opcode::ATOMIC_CMP_AND_SWP, 0, atomic(expected, new))
            }
            Verb::FetchAndAdd(add) => (opcode::ATOMIC_FETCH_AND_ADD, 0, atomic(add, 0)),
            Verb::MaskedCompareAndSwap { .. } => {
                return Err(self.device.unfit("has no masked atomics"));
            }
        };
        self.hand_over(id, opcode, flags, piece, wr)
    }

    fn send(&self, id: u64, message: &Message) -> Result<(), VerbsError> {
        let mut bytes = [0; MESSAGE_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(message) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let addr = bytes.as_mut_ptr().expose_provenance() as u64;
        let piece = api::Sge { addr, length: MESSAGE_BYTES as u32, lkey: 0 };
        let wr = api::Remote { rdma: api::Rdma { remote_addr: 0, rkey: 0 } };
        self.hand_over(id, opcode::SEND, send::INLINE, piece, wr)
    }

    fn receive(&self, id: u64, place: usize) -> Result<(), VerbsError> {
        let mut piece = self.memory.piece(message_at(place), MESSAGE_BYTES);
        let mut request =
            api::RecvWr { wr_id: id, next: null_mut(), sg_list: &mut piece, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the pair and its context live.
        let Some(post) = (unsafe { (*(*self.qp).context).post_recv }) else {
            return Err(self.device.unfit("takes no work: its driver is broken"));
        };
        // SAFETY: as for `hand_over`.
        self.device.done("posting a receive", unsafe { post(self.qp, &mut request, &mut bad) })
    }

    fn result(&self, place: usize) -> u64 {
        self.memory.word(place).unwrap_or(0)
    }

    fn message(&self, place: usize) -> Message {
        let at = message_at(place);
        core::array::from_fn(|n| u64::from_le(self.memory.word(at + n).unwrap_or(0)))
    }

    fn stop(&self) {
        let attr = api::QpAttr { qp_state: state::ERR, ..empty() };
        // If even that fails, the pair takes nothing any more either.
        let _ = self.modify("stopping a queue pair", attr, mask::STATE);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: it was made, and its memory is dropped after it. The device does nothing with that any more.
        unsafe { (self.device.api.destroy_qp)(self.qp) };
    }
}

/// The first word of a message's place.
fn message_at(place: usize) -> usize {
    SENDS as usize + place * MESSAGE_WORDS
}

/// How often something is tried again that was not acknowledged. 7 would be for ever on Soft-RoCE.
const RETRIES: u8 = 6;

/// Code of how long a sender waits that finds no receive posted, before it tries again: 328 ms, hence 2 s in all.
const RNR_TIMER: u8 = 30;

fn empty() -> api::QpAttr {
    // SAFETY: all bits zero are a value.
    unsafe { zeroed() }
}
