// The functions of `libdlm.so.3` that need a thread.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use lockify_dlm::{EUNLOCK, LKF_WAIT, Lksb, LockCall, UnlockCall, Waiting, answer};

/// Implements `dlm_pthread_init(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_pthread_init() -> c_int {
    answer(|| lockify_dlm::default_space()?.start_thread().map(|()| 0))
}

/// Implements `dlm_ls_pthread_init(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_ls_pthread_init(ls: *mut c_void) -> c_int {
    answer(|| lockify_dlm::by_pointer(ls)?.start_thread().map(|()| 0))
}

/// `dlm_pthread_cleanup(3)`: closes the default lockspace.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_pthread_cleanup() -> c_int {
    answer(|| {
        lockify_dlm::remove_default();
        Ok(0)
    })
}

fn block() -> Lksb {
    Lksb { status: 0, lkid: 0, flags: 0, lvb: null_mut() }
}

/// `lock_resource`: locks in the default lockspace, waits, and fails with the status as errno.
///
/// # Safety
/// `resource` is null or a C string, `lockid` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lock_resource(
    resource: *const c_char,
    mode: c_int,
    flags: c_int,
    lockid: *mut c_int,
) -> c_int {
    answer(|| {
        if !lockify_dlm::has_default() {
            lockify_dlm::default_space()?.start_thread()?;
        }
        // SAFETY: the caller's promise.
        let lockid = unsafe { lockid.as_mut() }.ok_or(libc::EINVAL)?;
        let mut lksb = Lksb { lkid: *lockid as u32, ..block() };
        let name = match resource.is_null() {
            true => &[],
            // SAFETY: the caller's promise.
            false => unsafe { CStr::from_ptr(resource) }.to_bytes(),
        };
        let call = LockCall {
            mode: mode as u32,
            lksb: &raw mut lksb,
            flags: flags as u32 | LKF_WAIT,
            name,
            cast: None,
            bast: None,
            arg: null_mut(),
            xid: 0,
            timeout: None,
        };
        // SAFETY: the block lives until the call, which waits, returns.
        unsafe { lockify_dlm::default_space()?.lock(&call, Waiting::StatusInLksb) }?;
        *lockid = lksb.lkid as c_int;
        if lksb.status == 0 { Ok(0) } else { Err(lksb.status) }
    })
}

/// `unlock_resource`: unlocks in the default lockspace and waits.
#[unsafe(no_mangle)]
pub extern "C" fn unlock_resource(lockid: c_int) -> c_int {
    answer(|| {
        if !lockify_dlm::has_default() {
            return Err(libc::ENOTCONN);
        }
        let mut lksb = block();
        let call = UnlockCall {
            lkid: lockid as u32,
            flags: LKF_WAIT,
            lksb: &raw mut lksb,
            arg: null_mut(),
        };
        // SAFETY: the block lives until the call, which waits, returns.
        unsafe { lockify_dlm::default_space()?.unlock(&call, Waiting::StatusInLksb) }?;
        if lksb.status == EUNLOCK { Ok(0) } else { Err(lksb.status) }
    })
}
