//! The functions of corosync's libraries that are used, as their headers declare them
//! (`cpg.h`, `quorum.h`, `cmap.h`, `corotypes.h` of corosync 3.1).

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::error::Error;

pub(crate) type Handle = u64;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CpgAddress {
    pub(crate) nodeid: u32,
    pub(crate) pid: u32,
    pub(crate) reason: u32,
}

pub(crate) const CPG_NAME: usize = 128;

#[repr(C)]
pub(crate) struct CpgName {
    pub(crate) length: u32,
    pub(crate) value: [u8; CPG_NAME],
}

/// `struct cpg_ring_id` and `struct quorum_ring_id`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    pub(crate) nodeid: u32,
    pub(crate) seq: u64,
}

pub(crate) type CpgDeliver =
    unsafe extern "C" fn(Handle, *const CpgName, u32, u32, *mut c_void, usize);
pub(crate) type CpgConfchg = unsafe extern "C" fn(
    Handle,
    *const CpgName,
    *const CpgAddress,
    usize,
    *const CpgAddress,
    usize,
    *const CpgAddress,
    usize,
);
pub(crate) type CpgTotem = unsafe extern "C" fn(Handle, Ring, u32, *const u32);

/// The C structure `cpg_model_v1_data_t`.
#[repr(C)]
pub(crate) struct CpgModel {
    pub(crate) model: c_int,
    pub(crate) deliver: CpgDeliver,
    pub(crate) confchg: CpgConfchg,
    pub(crate) totem: CpgTotem,
    pub(crate) flags: c_uint,
}

pub(crate) type QuorumNotify = unsafe extern "C" fn(Handle, u32, Ring, u32, *const u32);
pub(crate) type QuorumNodes =
    unsafe extern "C" fn(Handle, Ring, u32, *const u32, u32, *const u32, u32, *const u32);

/// The C structure `quorum_model_v1_data_t`.
#[repr(C)]
pub(crate) struct QuorumModel {
    pub(crate) model: c_int,
    pub(crate) quorum: QuorumNotify,
    /// May be null: not called then.
    pub(crate) nodes: Option<QuorumNodes>,
}

/// `struct cmap_notify_value`.
#[repr(C)]
pub(crate) struct CmapValue {
    _kind: c_int,
    _len: usize,
    _data: *const c_void,
}

pub(crate) type CmapNotify =
    unsafe extern "C" fn(Handle, Handle, i32, *const c_char, CmapValue, CmapValue, *mut c_void);

/// `struct iovec`.
#[repr(C)]
pub(crate) struct IoVec {
    pub(crate) base: *const c_void,
    pub(crate) len: usize,
}

macro_rules! api {
    ($($library:ident = $file:literal { $($name:ident: fn($($arg:ty),*);)* })*) => {
        /// The loaded functions; each is named as in C. All return a `cs_error_t`.
        pub(crate) struct Api {
            $($(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> c_int,)*)*
            /// Keep the functions where they are.
            _libraries: Vec<Library>,
        }

        impl Api {
            fn load() -> Result<Api, Error> {
                $(let $library = open($file)?;)*
                Ok(Api {
                    // SAFETY: the symbols are functions, of the types that the headers of this
                    // version of the library (it is in its file name) declare.
                    $($($name: unsafe { symbol(&$library, $file, stringify!($name))? },)*)*
                    _libraries: vec![$($library),*],
                })
            }
        }
    };
}

api! {
    cpg = "libcpg.so.4" {
        cpg_model_initialize: fn(*mut Handle, c_int, *mut CpgModel, *mut c_void);
        cpg_finalize: fn(Handle);
        cpg_fd_get: fn(Handle, *mut c_int);
        cpg_context_get: fn(Handle, *mut *mut c_void);
        cpg_dispatch: fn(Handle, c_int);
        cpg_join: fn(Handle, *const CpgName);
        cpg_leave: fn(Handle, *const CpgName);
        cpg_mcast_joined: fn(Handle, c_int, *const IoVec, c_uint);
        cpg_local_get: fn(Handle, *mut c_uint);
    }
    quorum = "libquorum.so.5" {
        quorum_model_initialize: fn(*mut Handle, c_int, *mut QuorumModel, *mut u32, *mut c_void);
        quorum_finalize: fn(Handle);
        quorum_fd_get: fn(Handle, *mut c_int);
        quorum_context_get: fn(Handle, *mut *const c_void);
        quorum_dispatch: fn(Handle, c_int);
        quorum_trackstart: fn(Handle, c_uint);
    }
    cmap = "libcmap.so.4" {
        cmap_initialize: fn(*mut Handle);
        cmap_finalize: fn(Handle);
        cmap_fd_get: fn(Handle, *mut c_int);
        cmap_dispatch: fn(Handle, c_int);
        cmap_get: fn(Handle, *const c_char, *mut c_void, *mut usize, *mut c_int);
        cmap_iter_init: fn(Handle, *const c_char, *mut Handle);
        cmap_iter_next: fn(Handle, Handle, *mut c_char, *mut usize, *mut c_int);
        cmap_iter_finalize: fn(Handle, Handle);
        cmap_track_add: fn(Handle, *const c_char, i32, CmapNotify, *mut c_void, *mut Handle);
    }
}

fn open(file: &'static str) -> Result<Library, Error> {
    // SAFETY: corosync's libraries do nothing when they are loaded but register their logging.
    unsafe { Library::new(file) }.map_err(|e| Error::Library { library: file, why: e.to_string() })
}

/// # Safety
/// The symbol is of type `T`, a function pointer.
unsafe fn symbol<T: Copy>(
    library: &Library,
    file: &'static str,
    name: &'static str,
) -> Result<T, Error> {
    // SAFETY: as the caller promises.
    match unsafe { library.get::<T>(name) } {
        Ok(symbol) => Ok(*symbol),
        Err(e) => Err(Error::Library { library: file, why: e.to_string() }),
    }
}

/// The functions, loaded once for the life of the process; tried again if they were not there.
pub(crate) fn api() -> Result<&'static Api, Error> {
    static API: OnceLock<Api> = OnceLock::new();
    if let Some(api) = API.get() {
        return Ok(api);
    }
    let loaded = Api::load()?;
    Ok(API.get_or_init(|| loaded))
}
