//! Queue pairs of a device: connecting them, posting to them.
#![allow(unsafe_code, reason = "a library in C is called")]

use core::ffi::{c_int, c_uint};
use core::mem::zeroed;
use core::ptr::null_mut;
use std::rc::Rc;

use lockify_onesided::{MESSAGE_WORDS, Message, Verb};

use super::api::{self, access, mask, opcode, send, state};
use super::card::{CardPair, MESSAGE_BYTES, Target};
use super::device::Device;
use super::endpoint::Endpoint;
use super::error::VerbsError;
use super::memory::Memory;
use super::{RECEIVES, SENDS};

/// A queue pair of a reliable connection, with the memory for returned data: first the results of verbs, a word each,
/// then the messages.
pub(super) struct Pair {
    device: Rc<Device>,
    qp: *mut api::Qp,
    memory: Memory,
}

impl Pair {
    /// As [`Card::pair`].
    pub fn new(device: &Rc<Device>) -> Result<Pair, VerbsError> {
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
    pub fn number(&self) -> u32 {
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
        // SAFETY: the request and its buffers live until the call has copied them; later writes go to this pair's
        // memory.
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
