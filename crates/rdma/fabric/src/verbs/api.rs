//! The used part of libibverbs, as `infiniband/verbs.h` of rdma-core declares it (its ABI is stable: `IBVERBS_1.1`).
//!
//! The library is loaded when a device is opened, so that programs build and run where it is not installed. The published
//! bindings need cmake and libclang to be built. `abi.txt` is the C compiler's view of these declarations.
#![allow(unsafe_code, reason = "a library in C is loaded")]

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::error::VerbsError;

/// Something of which only the address is known here.
#[repr(C)]
pub(super) struct Opaque {
    _nothing: [u8; 0],
}

/// `struct ibv_context`; the header's inline functions call `ops`.
#[repr(C)]
pub(super) struct Context {
    pub device: *mut Opaque,
    _before_poll_cq: [*const c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    _before_post_send: [*const c_void; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    _after_post_recv: [*const c_void; 5],
}

/// `struct ibv_cq`, its beginning.
#[repr(C)]
pub(super) struct Cq {
    pub context: *mut Context,
}

/// `struct ibv_qp`, its beginning.
#[repr(C)]
pub(super) struct Qp {
    pub context: *mut Context,
    _others: [*const c_void; 5],
    _handle: u32,
    pub qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    _context: *mut Context,
    _pd: *mut Opaque,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct Channel {
    _context: *mut Context,
    pub fd: c_int,
    _refcnt: c_int,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttr {
    _before_max_qp: [u8; 108],
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    _before_max_cqe: [c_int; 4],
    pub max_cqe: c_int,
    _before_max_qp_rd_atom: [c_int; 2],
    pub max_qp_rd_atom: c_int,
    _before_max_qp_init_rd_atom: [c_int; 2],
    pub max_qp_init_rd_atom: c_int,
    _max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    _after: [c_int; 16],
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PortAttr {
    pub state: c_uint,
    _max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    _before_lid: [u32; 4],
    _pkey_tbl_len: u16,
    pub lid: u16,
    _before_link_layer: [u8; 10],
    pub link_layer: u8,
    _after: [u8; 3],
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GidEntry {
    pub gid: [u64; 2],
    _gid_index: u32,
    _port_num: u32,
    pub gid_type: u32,
    _ndev_ifindex: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Opaque,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, with `struct ibv_global_route` in it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AhAttr {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
pub(super) struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_send_wr`, with the `atomic` of its union, in which `rdma` is told by the first and the last field.
#[repr(C)]
pub(super) struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub wr: Remote,
    pub xrc: u64,
    pub rest: [u64; 6],
}

/// The C union `ibv_send_wr.wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Remote {
    pub rdma: Rdma,
    pub atomic: Atomic,
}

/// The C structure `ibv_send_wr.wr.rdma`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// The C structure `ibv_send_wr.wr.atomic`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `enum ibv_wc_status`, those that are told apart.
pub(super) mod status {
    pub const SUCCESS: u32 = 0;
    pub const REM_INV_REQ_ERR: u32 = 9;
    pub const REM_ACCESS_ERR: u32 = 10;
    pub const RNR_RETRY_EXC_ERR: u32 = 13;
}

/// `enum ibv_wr_opcode`.
pub(super) mod opcode {
    pub const RDMA_WRITE: u32 = 0;
    pub const SEND: u32 = 2;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
}

/// `enum ibv_send_flags`.
pub(super) mod send {
    pub const SIGNALED: u32 = 1 << 1;
    pub const INLINE: u32 = 1 << 3;
}

/// `enum ibv_access_flags`.
pub(super) mod access {
    pub const LOCAL_WRITE: u32 = 1;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
}

/// `enum ibv_qp_attr_mask`.
pub(super) mod mask {
    pub const STATE: u32 = 1;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// `enum ibv_qp_state`.
pub(super) mod state {
    pub const INIT: u32 = 1;
    pub const RTR: u32 = 2;
    pub const RTS: u32 = 3;
    pub const ERR: u32 = 6;
}

/// A reliable connection, `IBV_QPT_RC`.
pub(super) const RC: u32 = 2;
/// A port that is up, `IBV_PORT_ACTIVE`.
pub(super) const PORT_ACTIVE: u32 = 4;
/// A port on Ethernet, `IBV_LINK_LAYER_ETHERNET`.
pub(super) const ETHERNET: u8 = 2;
/// A GID of RoCE v2, `IBV_GID_TYPE_ROCE_V2`.
pub(super) const ROCE_V2: u32 = 2;

const FILE: &str = "libibverbs.so.1";

macro_rules! api {
    ($($name:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The library's functions; each is named as in C, without `ibv_`.
        pub(super) struct Api {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl Api {
            fn load() -> Result<Api, VerbsError> {
                // SAFETY: its initialisation reads configuration and has no conditions.
                let library = unsafe { Library::new(FILE) }.map_err(missing)?;
                Ok(Api {
                    // SAFETY: the symbols are functions of the types that the header declares for this `.so` version.
                    $($name: *unsafe { library.get(concat!(api!(@name $name), "\0")) }.map_err(missing)?,)*
                    _library: library,
                })
            }
        }
    };
    // The header calls this one by an inline function.
    (@name query_gid_ex) => { "_ibv_query_gid_ex" };
    (@name $name:ident) => { concat!("ibv_", stringify!($name)) };
}

api! {
    get_device_list: fn(*mut c_int) -> *mut *mut Opaque;
    free_device_list: fn(*mut *mut Opaque);
    get_device_name: fn(*mut Opaque) -> *const c_char;
    open_device: fn(*mut Opaque) -> *mut Context;
    close_device: fn(*mut Context) -> c_int;
    query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid_ex: fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    alloc_pd: fn(*mut Context) -> *mut Opaque;
    dealloc_pd: fn(*mut Opaque) -> c_int;
    reg_mr_iova: fn(*mut Opaque, *mut c_void, usize, u64, c_int) -> *mut Mr;
    dereg_mr: fn(*mut Mr) -> c_int;
    create_comp_channel: fn(*mut Context) -> *mut Channel;
    destroy_comp_channel: fn(*mut Channel) -> c_int;
    create_cq: fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut Cq;
    destroy_cq: fn(*mut Cq) -> c_int;
    get_cq_event: fn(*mut Channel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events: fn(*mut Cq, c_uint);
    create_qp: fn(*mut Opaque, *mut QpInitAttr) -> *mut Qp;
    modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp: fn(*mut Qp) -> c_int;
}

fn missing(error: libloading::Error) -> VerbsError {
    VerbsError::Library { file: FILE, why: error.to_string() }
}

impl Api {
    /// The library, loaded once.
    pub fn get() -> Result<&'static Api, VerbsError> {
        static API: OnceLock<Result<Api, VerbsError>> = OnceLock::new();
        API.get_or_init(Api::load).as_ref().map_err(Clone::clone)
    }
}

#[cfg(test)]
mod tests {
    use core::fmt::Write as _;
    use core::mem::offset_of;

    use super::*;

    /// `labs/kernels/tests/rdma` compares the same file with the C compiler's view of the header.
    #[test]
    fn declarations_have_the_layout_that_the_compiler_gives_the_header() {
        let mut said = String::new();
        macro_rules! say {
            ($($c:literal $type:ident: $($field:ident)*;)*) => {
                $($(writeln!(
                    said, concat!($c, ".", stringify!($field), " {}"), offset_of!($type, $field)
                ).unwrap();)*)*
            };
        }
        say! {
            "ibv_qp" Qp: context qp_num;
            "ibv_mr" Mr: lkey rkey;
            "ibv_comp_channel" Channel: fd;
            "ibv_device_attr" DeviceAttr: max_qp max_qp_wr max_cqe max_qp_rd_atom max_qp_init_rd_atom atomic_cap;
            "ibv_port_attr" PortAttr: state active_mtu gid_tbl_len lid link_layer;
            "ibv_gid_entry" GidEntry: gid gid_type;
            "ibv_qp_init_attr" QpInitAttr: send_cq recv_cq srq cap qp_type sq_sig_all;
            "ibv_qp_attr" QpAttr: path_mtu rq_psn sq_psn dest_qp_num qp_access_flags cap ah_attr alt_ah_attr pkey_index
                max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry rate_limit;
            "ibv_ah_attr" AhAttr: dlid sl src_path_bits static_rate is_global port_num;
            "ibv_send_wr" SendWr: wr_id next sg_list num_sge opcode send_flags wr;
            "ibv_recv_wr" RecvWr: wr_id next sg_list num_sge;
            "ibv_sge" Sge: addr length lkey;
            "ibv_wc" Wc: wr_id status opcode byte_len qp_num;
        }
        macro_rules! inner {
            ($($c:literal $type:ident: $($field:ident)*;)*) => {
                $($(writeln!(
                    said, concat!($c, ".", stringify!($field), " {}"), offset_of!($type, $field)
                ).unwrap();)*)*
            };
        }
        let ops = ["poll_cq", "req_notify_cq", "post_send", "post_recv"];
        let at = [
            offset_of!(Context, poll_cq),
            offset_of!(Context, req_notify_cq),
            offset_of!(Context, post_send),
            offset_of!(Context, post_recv),
        ];
        ops.iter()
            .zip(at)
            .for_each(|(op, at)| writeln!(said, "ibv_context.ops.{op} {at}").unwrap());
        inner! {
            "ibv_ah_attr.grh" AhAttr: dgid flow_label sgid_index hop_limit traffic_class;
        }
        let wr = offset_of!(SendWr, wr);
        for (name, at) in [
            ("rdma.remote_addr", offset_of!(Rdma, remote_addr)),
            ("rdma.rkey", offset_of!(Rdma, rkey)),
            ("atomic.remote_addr", offset_of!(Atomic, remote_addr)),
            ("atomic.compare_add", offset_of!(Atomic, compare_add)),
            ("atomic.swap", offset_of!(Atomic, swap)),
            ("atomic.rkey", offset_of!(Atomic, rkey)),
        ] {
            writeln!(said, "ibv_send_wr.wr.{name} {}", wr + at).unwrap();
        }
        macro_rules! sizes {
            ($($c:literal $type:ident)*) => {
                $(writeln!(said, concat!("sizeof ", $c, " {}"), size_of::<$type>()).unwrap();)*
            };
        }
        sizes! {
            "ibv_device_attr" DeviceAttr "ibv_port_attr" PortAttr "ibv_gid_entry" GidEntry
            "ibv_qp_init_attr" QpInitAttr "ibv_qp_attr" QpAttr "ibv_send_wr" SendWr "ibv_recv_wr" RecvWr
            "ibv_sge" Sge "ibv_wc" Wc
        }
        assert_eq!(said, include_str!("abi.txt"));
    }
}
