//! `liblockify.so`: the Rust client's calls for C (`include/lockify.h`, which documents them).
//!
//! Handles are boxes whose address the program has. A panic does not cross into C: the call fails
//! with [`Code::Failed`].

mod code;
mod handles;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

use lockify_client::domain::{Choice, Domain};
use lockify_client::{Client, LockFlags, Mode, SbFlags};

use code::{Code, Failure, call, message};
use handles::{Argument, Gate, Lock, Session, Space};

/// `struct lockify_request`.
#[repr(C)]
#[derive(Debug)]
pub struct Request {
    size: usize,
    mode: c_int,
    flags: u32,
    timeout: i64,
    on_block: Option<unsafe extern "C" fn(c_int, *mut c_void)>,
    arg: *mut c_void,
    lvb: *const c_void,
}

/// `struct lockify_lost`.
#[repr(C)]
#[derive(Debug)]
pub struct Lost {
    name: *const c_void,
    name_len: usize,
    mode: c_int,
    why: *const c_char,
}

/// # Safety
/// Null, or a valid pointer.
unsafe fn given<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{what} is NULL")))
}

/// # Safety
/// Null, or a C string.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(given(pointer, what)?) };
    text.to_str().map_err(|_| Failure::invalid(format!("{what} is not UTF-8")))
}

/// Gives the program a handle.
///
/// # Safety
/// `out` is null or valid.
unsafe fn give<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T, Failure>) -> c_int {
    call(|| {
        if out.is_null() {
            return Err(Failure::invalid("the place for the handle is NULL".into()));
        }
        // SAFETY: the caller's promise.
        unsafe { *out = std::ptr::null_mut() };
        let made = Box::into_raw(Box::new(make()?));
        // SAFETY: the caller's promise.
        unsafe { *out = made };
        Ok(())
    })
}

/// Takes a handle back.
///
/// # Safety
/// `handle` is null or from [`give`], and is not used again.
unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: the caller's promise.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// A checked request.
struct Wish<'a> {
    mode: Mode,
    flags: LockFlags,
    timeout: Option<Duration>,
    request: &'a Request,
}

/// # Safety
/// Null, or a request.
unsafe fn wish<'a>(request: *const Request) -> Result<Wish<'a>, Failure> {
    // SAFETY: the caller's promise; `size` comes first in every version of it.
    let request = unsafe { given(request, "the request") }?;
    if request.size < size_of::<Request>() {
        let text = "the request was not set to LOCKIFY_REQUEST_INIT";
        return Err(Failure::invalid(text.into()));
    }
    let mode = usize::try_from(request.mode).ok().and_then(|m| Mode::ALL.get(m));
    let mode =
        *mode.ok_or_else(|| Failure::invalid(format!("{} is no mode: 0 to 5", request.mode)))?;
    let flags = LockFlags::from_bits(request.flags).filter(|f| !f.contains(LockFlags::FREED));
    let flags =
        flags.ok_or_else(|| Failure::invalid(format!("unknown flags in {:#x}", request.flags)))?;
    let timeout = u64::try_from(request.timeout).ok().map(Duration::from_millis);
    Ok(Wish { mode, flags, timeout, request })
}

/// The last failed call's message.
#[unsafe(no_mangle)]
pub extern "C" fn lockify_message() -> *const c_char {
    message()
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn lockify_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Connects to a daemon.
///
/// # Safety
/// `socket` is null or a C string; `session` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_connect(
    socket: *const c_char,
    session: *mut *mut Session,
) -> c_int {
    let connect = || {
        Ok(Session(match socket.is_null() {
            true => Client::open()?,
            // SAFETY: the caller's promise.
            false => Client::connect(unsafe { text(socket, "the socket") }?)?,
        }))
    };
    // SAFETY: the caller's promise.
    unsafe { give(session, connect) }
}

/// Connects to this user's own daemon on this machine.
///
/// # Safety
/// `session` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_connect_local(session: *mut *mut Session) -> c_int {
    let connect = || Ok(Session(Domain::find(&Choice::Local)?.connect_or_start()?));
    // SAFETY: the caller's promise.
    unsafe { give(session, connect) }
}

/// Ends a session.
///
/// # Safety
/// `session` is null or a session that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_disconnect(session: *mut Session) {
    call(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { take(session) });
        Ok(())
    });
}

/// Opens a lockspace.
///
/// # Safety
/// Pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_open(
    session: *const Session,
    name: *const c_char,
    space: *mut *mut Space,
) -> c_int {
    // SAFETY: the caller's promise.
    let open = || unsafe {
        let session = given(session, "the session")?;
        Ok(Space(session.0.lockspace(text(name, "the lockspace's name")?)?))
    };
    // SAFETY: the caller's promise.
    unsafe { give(space, open) }
}

/// Makes a lockspace.
///
/// # Safety
/// Pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_create(
    session: *const Session,
    name: *const c_char,
    exclusive: c_int,
    space: *mut *mut Space,
) -> c_int {
    // SAFETY: the caller's promise.
    let create = || unsafe {
        let session = given(session, "the session")?;
        let name = text(name, "the lockspace's name")?;
        Ok(Space(session.0.create_lockspace(name, exclusive != 0)?))
    };
    // SAFETY: the caller's promise.
    unsafe { give(space, create) }
}

/// Makes a lockspace with these permission bits.
///
/// # Safety
/// Pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_create_mode(
    session: *const Session,
    name: *const c_char,
    exclusive: c_int,
    mode: c_uint,
    space: *mut *mut Space,
) -> c_int {
    // SAFETY: the caller's promise.
    let create = || unsafe {
        let session = given(session, "the session")?;
        let name = text(name, "the lockspace's name")?;
        Ok(Space(session.0.create_lockspace_with_mode(name, exclusive != 0, mode)?))
    };
    // SAFETY: the caller's promise.
    unsafe { give(space, create) }
}

/// Releases a lockspace.
///
/// # Safety
/// Pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_release(
    session: *const Session,
    name: *const c_char,
    force: c_int,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { given(session, "the session") }?;
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "the lockspace's name") }?;
        Ok(session.0.release_lockspace(name, force != 0)?)
    })
}

/// Closes a lockspace.
///
/// # Safety
/// `space` is null or a lockspace that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_close(space: *mut Space) {
    call(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { take(space) });
        Ok(())
    });
}

/// Length of value blocks.
///
/// # Safety
/// `space` is null or a lockspace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_lvb_size(space: *const Space) -> usize {
    // SAFETY: the caller's promise.
    unsafe { space.as_ref() }.map_or(0, |space| space.0.lvb_len())
}

/// Calls back for lost locks.
///
/// # Safety
/// `space` is null or a lockspace; `lost` may be called with `arg` from any thread, as long as the
/// session lasts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_on_lost(
    space: *const Space,
    lost: Option<unsafe extern "C" fn(*const Lost, *mut c_void)>,
    arg: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let space = unsafe { given(space, "the lockspace") }?;
        let lost = lost.ok_or_else(|| Failure::invalid("the callback is NULL".into()))?;
        let arg = Argument(arg);
        space.0.on_lost(move |lock| {
            let why = code::c_text(&lock.why);
            let name = lock.name.as_bytes();
            let told = Lost {
                name: name.as_ptr().cast(),
                name_len: name.len(),
                mode: lock.mode as c_int,
                why: why.as_ptr(),
            };
            // SAFETY: the caller's promise.
            unsafe { lost(&raw const told, arg.get()) };
        });
        Ok(())
    })
}

/// Locks.
///
/// # Safety
/// Pointers are null or valid, `name` has `name_len` bytes; the request's callback may be called
/// with its argument from any thread until the lock has been unlocked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_lock(
    space: *const Space,
    name: *const c_void,
    name_len: usize,
    request: *const Request,
    lock: *mut *mut Lock,
) -> c_int {
    let gate = Arc::new(Gate::default());
    let make = || {
        // SAFETY: the caller's promise.
        let space = unsafe { given(space, "the lockspace") }?;
        // SAFETY: the caller's promise.
        let name = unsafe { given(name.cast::<u8>(), "the name") }?;
        // SAFETY: the caller's promise.
        let name = unsafe { std::slice::from_raw_parts(name, name_len) };
        // SAFETY: the caller's promise.
        let wish = unsafe { wish(request) }?;
        let mut builder = space.0.request(name, wish.mode);
        if wish.flags.contains(LockFlags::VALBLK) {
            builder = builder.read_lvb();
        }
        builder = builder.flags(wish.flags);
        if let Some(timeout) = wish.timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(on_block) = wish.request.on_block {
            let arg = Argument(wish.request.arg);
            let gate = gate.clone();
            builder = builder.on_block(move |mode| {
                // SAFETY: the caller's promise.
                gate.run(|| unsafe { on_block(mode as c_int, arg.get()) });
            });
        }
        Ok(Lock::new(builder.lock()?, space.0.lvb_len(), gate.clone()))
    };
    // SAFETY: the caller's promise.
    let code = unsafe { give(lock, make) };
    if code == 0 {
        gate.open()
    } else {
        gate.shut()
    }
    code
}

/// Converts a lock.
///
/// # Safety
/// Pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_convert(lock: *const Lock, request: *const Request) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let lock = unsafe { given(lock, "the lock") }?;
        // SAFETY: the caller's promise.
        let wish = unsafe { wish(request) }?;
        let lvb = match wish.flags.contains(LockFlags::VALBLK) {
            // SAFETY: the caller's promise.
            true => Some(unsafe { lock.block(wish.request.lvb) }?),
            false => None,
        };
        let mut guard = lock.guard();
        let mut builder = guard.conversion(wish.mode).flags(wish.flags);
        if let Some(lvb) = lvb {
            builder = builder.lvb(lvb);
        }
        if let Some(timeout) = wish.timeout {
            builder = builder.timeout(timeout);
        }
        builder.convert().map_err(Failure::of_held)
    })
}

/// Unlocks.
///
/// # Safety
/// `lock` is null or a lock that is not used again; `lvb` null or a value block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_unlock(lock: *mut Lock, lvb: *const c_void, flags: u32) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let lock = unsafe { take(lock) };
        let lock = lock.ok_or_else(|| Failure::invalid("the lock is NULL".into()))?;
        if flags & !LockFlags::IVVALBLK.bits() != 0 {
            return Err(Failure::invalid(format!("unknown flags in {flags:#x}: it was unlocked")));
        }
        // SAFETY: the caller's promise.
        let lvb = if lvb.is_null() { None } else { Some(unsafe { lock.block(lvb) }?.to_owned()) };
        let mut release = lock.into_guard().release();
        if let Some(lvb) = lvb {
            release = release.lvb(&lvb);
        }
        if flags != 0 {
            release = release.invalidate_lvb();
        }
        release.unlock().map_err(Failure::of_held)
    })
}

/// Forgets a lock's handle.
///
/// # Safety
/// `lock` is null or a lock that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_keep(lock: *mut Lock) {
    call(|| {
        // SAFETY: the caller's promise.
        if let Some(lock) = unsafe { take(lock) } {
            lock.into_guard().keep();
        }
        Ok(())
    });
}

/// Checks that a lock is held.
///
/// # Safety
/// `lock` is null or a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_check(lock: *const Lock) -> c_int {
    // SAFETY: the caller's promise.
    call(|| Ok(unsafe { given(lock, "the lock") }?.guard().check()?))
}

/// The mode held; -1 of no lock.
///
/// # Safety
/// `lock` is null or a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_held_mode(lock: *const Lock) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { lock.as_ref() }.map_or(-1, |lock| lock.guard().mode() as c_int)
}

/// The fencing token.
///
/// # Safety
/// `lock` is null or a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_token(lock: *const Lock) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { lock.as_ref() }.map_or(0, |lock| lock.guard().token())
}

/// Returns 1 if the grant is provisional, else 0.
///
/// # Safety
/// `lock` is null or a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_provisional(lock: *const Lock) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { lock.as_ref() }.map_or(0, |lock| lock.guard().provisional().into())
}

/// Flags of the last completion.
///
/// # Safety
/// `lock` is null or a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_flags(lock: *const Lock) -> u32 {
    // SAFETY: the caller's promise.
    let flags = unsafe { lock.as_ref() }.map_or(SbFlags::empty(), |l| l.guard().sb_flags());
    flags.bits().into()
}

/// Copies the value block that was read last.
///
/// # Safety
/// `lock` is null or a lock; `lvb` null or of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockify_lvb(lock: *const Lock, lvb: *mut c_void, size: usize) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let lock = unsafe { given(lock, "the lock") }?;
        let guard = lock.guard();
        let text = "no value block has been read: use LOCKIFY_VALBLK, or nobody has written one";
        let read = guard.lvb().ok_or_else(|| Failure::new(Code::Failed, text.into()))?;
        if lvb.is_null() || size < read.len() {
            return Err(Failure::invalid(format!("value blocks have {} bytes", read.len())));
        }
        // SAFETY: the caller's promise about the size, which is large enough.
        unsafe { std::ptr::copy_nonoverlapping(read.as_ptr(), lvb.cast(), read.len()) };
        Ok(())
    })
}
