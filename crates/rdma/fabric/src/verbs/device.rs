//! A device that is open, with its queue of completions; `memory.rs` and `pair.rs` have its parts.
#![allow(unsafe_code, reason = "a library in C is called")]

use core::ffi::{CStr, c_int};
use core::mem::zeroed;
use core::ptr::null_mut;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::api::{self, Api};
use super::card::{Card, Completion};
use super::endpoint::Endpoint;
use super::error::VerbsError;
use super::pair::Pair;
use super::{RECEIVES, SENDS, Settings};

/// A device that is open. Its pairs and memory keep it open.
pub(super) struct Device {
    pub(super) api: &'static Api,
    pub(super) name: String,
    context: *mut api::Context,
    pub(super) pd: *mut api::Opaque,
    channel: *mut api::Channel,
    pub(super) cq: *mut api::Cq,
    pub(super) attr: api::DeviceAttr,
    pub(super) port: api::PortAttr,
    pub(super) gid: Gid,
    pub(super) settings: Settings,
}

#[derive(Clone, Copy)]
pub(super) struct Gid {
    pub index: u8,
    pub gid: [u64; 2],
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

    /// Asks for its capabilities.
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

    pub fn unfit(&self, what: &str) -> VerbsError {
        VerbsError::Unfit { device: self.name.clone(), what: what.to_owned() }
    }

    /// The result of a function that returns an error's number.
    pub fn done(&self, what: &'static str, result: c_int) -> Result<(), VerbsError> {
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
    pub fn made<T>(&self, what: &'static str, made: *mut T) -> Result<(), VerbsError> {
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

    /// The descriptor that becomes readable with a completion after [`Device::arm`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as the device.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// Clears the events that made the bell readable.
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
        // SAFETY: each was made, or is null; pairs and memory hold this device, so none is left. A failure leaves
        // an object open until the process ends.
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
        // It says so where the kernel has no verbs at all.
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
    // SAFETY: the list is the library's; opened devices stay.
    unsafe { (api.free_device_list)(list) };
    opened
}
