// The functions that `libdlm.so.3` and `libdlm_lt.so.3` have in common: part of both libraries.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use lockify_dlm::{Ast, Handle, LKF_WAIT, Lksb, LockCall, UnlockCall, answer};

use crate::WAITING;

/// `DLM_LSFL_NEWEXCL`: a lockspace that exists is not used.
const LSFL_NEWEXCL: u32 = 0x8;

/// A lockspace's name, as it must be.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn space_name<'a>(name: *const c_char) -> Result<&'a str, c_int> {
    if name.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| libc::EINVAL)?;
    let fits = (1..=64).contains(&name.len());
    fits.then_some(name).ok_or(libc::EINVAL)
}

/// A new handle, or null and errno.
fn opened(open: impl FnOnce() -> Result<Handle, c_int>) -> *mut c_void {
    let mut pointer = null_mut();
    answer(|| {
        pointer = lockify_dlm::add(open()?);
        Ok(0)
    });
    pointer
}

/// Locks or converts.
///
/// # Safety
/// `name` is null or has `namelen` bytes; else as [`Handle::lock`].
unsafe fn lock(
    space: Result<Arc<Handle>, c_int>,
    mut call: LockCall<'_>,
    name: *const c_void,
    namelen: c_uint,
) -> Result<c_int, c_int> {
    const LKF_CONVERT: u32 = 0x4;
    let space = space?;
    if call.flags & LKF_CONVERT == 0 {
        if name.is_null() || namelen > 64 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        call.name = unsafe { std::slice::from_raw_parts(name.cast(), namelen as usize) };
    }
    // SAFETY: the caller's promise.
    unsafe { space.lock(&call, WAITING) }?;
    Ok(0)
}

fn no_range(range: *mut c_void) -> Result<(), c_int> {
    if range.is_null() { Ok(()) } else { Err(libc::ENOSYS) }
}

/// `dlm_create_lockspace(3)`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_create_lockspace(
    name: *const c_char,
    mode: libc::mode_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { dlm_new_lockspace(name, mode, 0) }
}

/// `dlm_new_lockspace(3)`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_new_lockspace(
    name: *const c_char,
    mode: libc::mode_t,
    flags: u32,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    opened(|| Handle::create(unsafe { space_name(name) }?, flags & LSFL_NEWEXCL != 0, mode))
}

/// `dlm_open_lockspace(3)`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_open_lockspace(name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    opened(|| Handle::open(unsafe { space_name(name) }?))
}

/// Implements `dlm_close_lockspace(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_close_lockspace(ls: *mut c_void) -> c_int {
    answer(|| lockify_dlm::close(ls).map(|()| 0))
}

/// `dlm_release_lockspace(3)`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_release_lockspace(
    name: *const c_char,
    ls: *mut c_void,
    force: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { space_name(name) }?;
        lockify_dlm::close(ls)?;
        Handle::release(name, force != 0).map(|()| 0)
    })
}

/// `dlm_ls_lockx(3)`; `timeout` is in hundredths of a second and needs LKF_TIMEOUT; `xid` is the
/// transaction of a new lock, for the search for deadlocks.
///
/// # Safety
/// Pointers are null or valid: the status block, its value block and what the routines need until
/// the operation has ended; `name` has `namelen` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_ls_lockx(
    ls: *mut c_void,
    mode: u32,
    lksb: *mut Lksb,
    flags: u32,
    name: *const c_void,
    namelen: c_uint,
    _parent: u32,
    cast: Option<Ast>,
    arg: *mut c_void,
    bast: Option<Ast>,
    xid: *mut u64,
    timeout: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let timeout = unsafe { timeout.as_ref() }.copied();
    // SAFETY: the caller's promise.
    let xid = unsafe { xid.as_ref() }.copied().unwrap_or(0);
    let call = LockCall { mode, lksb, flags, name: &[], cast, bast, arg, xid, timeout };
    // SAFETY: the caller's promise.
    answer(|| unsafe { lock(lockify_dlm::by_pointer(ls), call, name, namelen) })
}

/// `dlm_ls_lock(3)`.
///
/// # Safety
/// As [`dlm_ls_lockx`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_ls_lock(
    ls: *mut c_void,
    mode: u32,
    lksb: *mut Lksb,
    flags: u32,
    name: *const c_void,
    namelen: c_uint,
    _parent: u32,
    cast: Option<Ast>,
    arg: *mut c_void,
    bast: Option<Ast>,
    range: *mut c_void,
) -> c_int {
    let (xid, timeout) = (0, None);
    let call = LockCall { mode, lksb, flags, name: &[], cast, bast, arg, xid, timeout };
    answer(|| {
        no_range(range)?;
        // SAFETY: the caller's promise.
        unsafe { lock(lockify_dlm::by_pointer(ls), call, name, namelen) }
    })
}

/// `dlm_ls_lock_wait(3)`.
///
/// # Safety
/// As [`dlm_ls_lockx`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_ls_lock_wait(
    ls: *mut c_void,
    mode: u32,
    lksb: *mut Lksb,
    flags: u32,
    name: *const c_void,
    namelen: c_uint,
    parent: u32,
    arg: *mut c_void,
    bast: Option<Ast>,
    range: *mut c_void,
) -> c_int {
    let flags = flags | LKF_WAIT;
    // SAFETY: the caller's promise.
    unsafe { dlm_ls_lock(ls, mode, lksb, flags, name, namelen, parent, None, arg, bast, range) }
}

/// `dlm_lock(3)`.
///
/// # Safety
/// As [`dlm_ls_lockx`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock(
    mode: u32,
    lksb: *mut Lksb,
    flags: u32,
    name: *const c_void,
    namelen: c_uint,
    _parent: u32,
    cast: Option<Ast>,
    arg: *mut c_void,
    bast: Option<Ast>,
    range: *mut c_void,
) -> c_int {
    let (xid, timeout) = (0, None);
    let call = LockCall { mode, lksb, flags, name: &[], cast, bast, arg, xid, timeout };
    answer(|| {
        no_range(range)?;
        // SAFETY: the caller's promise.
        unsafe { lock(lockify_dlm::default_space(), call, name, namelen) }
    })
}

/// `dlm_lock_wait(3)`.
///
/// # Safety
/// As [`dlm_ls_lockx`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_wait(
    mode: u32,
    lksb: *mut Lksb,
    flags: u32,
    name: *const c_void,
    namelen: c_uint,
    parent: u32,
    arg: *mut c_void,
    bast: Option<Ast>,
    range: *mut c_void,
) -> c_int {
    let flags = flags | LKF_WAIT;
    // SAFETY: the caller's promise.
    unsafe { dlm_lock(mode, lksb, flags, name, namelen, parent, None, arg, bast, range) }
}

/// The lockspace of an unlock: none is ENOTCONN, as in libdlm.
fn unlock_space(ls: *mut c_void) -> Result<Arc<Handle>, c_int> {
    if ls.is_null() { Err(libc::ENOTCONN) } else { lockify_dlm::by_pointer(ls) }
}

fn unlock_default() -> Result<Arc<Handle>, c_int> {
    if lockify_dlm::has_default() { lockify_dlm::default_space() } else { Err(libc::ENOTCONN) }
}

/// # Safety
/// As [`dlm_ls_lockx`].
unsafe fn unlock(space: Result<Arc<Handle>, c_int>, call: &UnlockCall) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        unsafe { space?.unlock(call, WAITING) }?;
        Ok(0)
    })
}

/// `dlm_ls_unlock(3)`.
///
/// # Safety
/// As [`dlm_ls_lockx`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_ls_unlock(
    ls: *mut c_void,
    lkid: u32,
    flags: u32,
    lksb: *mut Lksb,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { unlock(unlock_space(ls), &UnlockCall { lkid, flags, lksb, arg }) }
}

/// `dlm_ls_unlock_wait(3)`.
///
/// # Safety
/// As [`dlm_ls_lockx`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_ls_unlock_wait(
    ls: *mut c_void,
    lkid: u32,
    flags: u32,
    lksb: *mut Lksb,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { dlm_ls_unlock(ls, lkid, flags | LKF_WAIT, lksb, null_mut()) }
}

/// `dlm_unlock(3)`.
///
/// # Safety
/// As [`dlm_ls_lockx`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_unlock(
    lkid: u32,
    flags: u32,
    lksb: *mut Lksb,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { unlock(unlock_default(), &UnlockCall { lkid, flags, lksb, arg }) }
}

/// `dlm_unlock_wait(3)`.
///
/// # Safety
/// As [`dlm_ls_lockx`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_unlock_wait(lkid: u32, flags: u32, lksb: *mut Lksb) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { dlm_unlock(lkid, flags | LKF_WAIT, lksb, null_mut()) }
}

/// `dlm_ls_deadlock_cancel`: ends a lock's outstanding operation with EDEADLK.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_ls_deadlock_cancel(ls: *mut c_void, lkid: u32, _flags: u32) -> c_int {
    answer(|| unlock_space(ls)?.break_deadlock(lkid).map(|()| 0))
}

/// `dlm_ls_purge`: drops orphans.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_ls_purge(ls: *mut c_void, nodeid: c_int, pid: c_int) -> c_int {
    answer(|| unlock_space(ls)?.purge(nodeid, pid).map(|()| 0))
}

/// Implements `dlm_get_fd(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_get_fd() -> c_int {
    answer(|| Ok(lockify_dlm::default_space()?.descriptor()))
}

/// Implements `dlm_ls_get_fd(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_ls_get_fd(ls: *mut c_void) -> c_int {
    answer(|| Ok(lockify_dlm::by_pointer(ls)?.descriptor()))
}

/// Implements `dlm_dispatch(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_dispatch(fd: c_int) -> c_int {
    answer(|| lockify_dlm::by_descriptor(fd)?.dispatch().map(|()| 0))
}

/// Writes a version where the program wants it.
///
/// # Safety
/// Each pointer is null or valid.
unsafe fn version(parts: [*mut u32; 3]) {
    for (to, part) in parts.into_iter().zip(lockify_dlm::DEVICE_VERSION) {
        // SAFETY: the caller's promise.
        if let Some(to) = unsafe { to.as_mut() } {
            *to = part;
        }
    }
}

/// `dlm_kernel_version`: that of the kernel's interface, if a daemon answers in its place.
///
/// # Safety
/// Each pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_kernel_version(
    major: *mut u32,
    minor: *mut u32,
    patch: *mut u32,
) -> c_int {
    answer(|| {
        lockify_dlm::reach()?;
        // SAFETY: the caller's promise.
        unsafe { version([major, minor, patch]) };
        Ok(0)
    })
}

/// `dlm_library_version`.
///
/// # Safety
/// Each pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_library_version(major: *mut u32, minor: *mut u32, patch: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe { version([major, minor, patch]) };
}
