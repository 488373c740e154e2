//! The handles of this process, and the default lockspace.
//!
//! A handle that the program does not have (any more) is refused with EINVAL: a handle is a number,
//! not an address.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::handle::Handle;

/// The lockspace of the calls that name none.
const DEFAULT: &str = "default";
/// Its permissions, if it has to be made.
const DEFAULT_MODE: u32 = 0o600;

struct Registry {
    handles: Option<HashMap<usize, Arc<Handle>>>,
    last: usize,
    default: Option<usize>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { handles: None, last: 0, default: None });

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    fn add(&mut self, handle: Arc<Handle>) -> usize {
        // Distinct from null and from what looks like an error.
        self.last += 0x10;
        self.handles.get_or_insert_default().insert(self.last, handle);
        self.last
    }

    fn get(&self, id: usize) -> Option<Arc<Handle>> {
        self.handles.as_ref()?.get(&id).cloned()
    }
}

/// Enters a handle; returns the program's value for it.
pub fn add(handle: Handle) -> *mut c_void {
    registry().add(Arc::new(handle)) as *mut c_void
}

/// The handle behind the program's value.
///
/// # Errors
/// EINVAL.
pub fn by_pointer(pointer: *mut c_void) -> Result<Arc<Handle>, c_int> {
    registry().get(pointer as usize).ok_or(libc::EINVAL)
}

/// The handle with this descriptor.
///
/// # Errors
/// EBADF.
pub fn by_descriptor(descriptor: c_int) -> Result<Arc<Handle>, c_int> {
    let registry = registry();
    let mut handles = registry.handles.iter().flat_map(HashMap::values);
    handles.find(|h| h.descriptor() == descriptor).cloned().ok_or(libc::EBADF)
}

/// Closes a handle.
///
/// # Errors
/// EINVAL.
pub fn close(pointer: *mut c_void) -> Result<(), c_int> {
    let handle = {
        let mut registry = registry();
        let id = pointer as usize;
        if registry.default == Some(id) {
            registry.default = None;
        }
        registry.handles.as_mut().and_then(|h| h.remove(&id)).ok_or(libc::EINVAL)?
    };
    handle.close();
    Ok(())
}

/// Returns true if the default lockspace is open.
pub fn has_default() -> bool {
    registry().default.is_some()
}

/// The default lockspace, which is opened, or made, if that has not been done.
///
/// # Errors
/// As [`Handle::open`] and [`Handle::create`].
pub fn default_space() -> Result<Arc<Handle>, c_int> {
    if let Some(handle) = opened_default() {
        return Ok(handle);
    }
    let handle = Handle::open(DEFAULT).or_else(|e| match e {
        libc::ENOENT => Handle::create(DEFAULT, false, DEFAULT_MODE),
        e => Err(e),
    })?;
    let handle = Arc::new(handle);
    let mut registry = registry();
    // Another thread may have been quicker.
    if let Some(other) = registry.default.and_then(|id| registry.get(id)) {
        return Ok(other);
    }
    let id = registry.add(handle.clone());
    registry.default = Some(id);
    Ok(handle)
}

fn opened_default() -> Option<Arc<Handle>> {
    let registry = registry();
    registry.default.and_then(|id| registry.get(id))
}

/// Closes the default lockspace, if it is open.
pub fn remove_default() {
    let id = registry().default;
    if let Some(id) = id {
        // Another thread may have been quicker.
        let _ = close(id as *mut c_void);
    }
}
