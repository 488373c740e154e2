//! A device's begin and end.
//!
//! The library's control ring belongs to a thread, so one thread does all of it.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use libublk::UblkFlags;
use libublk::ctrl::UblkCtrl;
use libublk::io::UblkDev;
use libublk::sys::{self, ublk_param_basic, ublk_param_discard, ublk_params};
use rustix::fs::OFlags;
use xxhash_rust::xxh3::xxh3_64;

use super::bell::Bell;
use super::error::{checked, io_error};
use super::queue::{serve, without_signals};
use super::requests::Requests;
use super::{DEPTH, Error, MAX_BYTES, MAX_ZEROES, PATIENCE};
use crate::ArrayId;
use crate::door::{Backend, Export, Stopper};
use crate::host::Reservation;

const CONTROL: &str = "/dev/ublk-control";
/// How long operations under way may take when the device is left.
const SETTLING: Duration = Duration::from_secs(10);
/// How long the kernel may take until it knows that a device's process is gone, or until nobody has a removed device open.
const SLOW: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);
/// ENODEV: the kernel has no device of this number.
const NO_DEVICE: i32 = 19;
/// The devices keep requests while nobody serves them, and repeat those that were under way.
const KEPT: u64 = (sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE) as u64;

/// The block device's path.
pub(super) fn block_device(id: u32) -> String {
    format!("/dev/ublkb{id}")
}

/// Returns true if a file system, another device or a careful program has the block device for itself.
pub(super) fn is_in_use(id: u32) -> bool {
    let exclusive = OFlags::EXCL.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(block_device(id));
    opened.is_err_and(|error| error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()))
}

/// The device to serve.
pub(super) struct Plan {
    pub id: u32,
    pub array: ArrayId,
    pub export: Arc<Export>,
    pub reservation: Option<Reservation>,
    /// Whatever another export has left as this device may be removed.
    pub discard: bool,
    pub log: fn(&str),
}

impl Plan {
    /// The number that the kernel keeps with the device: whose it is.
    pub fn tag(&self) -> u64 {
        tag(self.array, self.reservation.map_or(0, |reservation| reservation.number))
    }

    fn params(&self) -> ublk_params {
        let Export { size, block_size, stripe, read_only, volatile, .. } = *self.export;
        let mut attrs = 0;
        if read_only {
            attrs |= sys::UBLK_ATTR_READ_ONLY;
        }
        if volatile {
            attrs |= sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA;
        }
        // Logarithms of 32 or 64 bits.
        let shift = block_size.trailing_zeros() as u8;
        let stripe = if stripe.is_power_of_two() { stripe.trailing_zeros() as u8 } else { shift };
        let basic = ublk_param_basic {
            attrs,
            logical_bs_shift: shift,
            physical_bs_shift: shift,
            io_opt_shift: stripe,
            io_min_shift: shift,
            max_sectors: MAX_BYTES >> 9,
            dev_sectors: size >> 9,
            ..ublk_param_basic::default()
        };
        let discard = ublk_param_discard {
            discard_granularity: block_size,
            max_write_zeroes_sectors: MAX_ZEROES >> 9,
            ..ublk_param_discard::default()
        };
        let types = sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_DISCARD;
        ublk_params { types, basic, discard, ..ublk_params::default() }
    }

    fn refused(&self, step: &'static str) -> impl Fn(io::Error) -> Error + use<> {
        refused(self.id, step)
    }
}

fn tag(array: ArrayId, reservation: u32) -> u64 {
    // It tells arrays of one machine apart, so few bits do.
    (xxh3_64(&array.0) & 0xffff_ffff) << 32 | u64::from(reservation)
}

fn refused(id: u32, step: &'static str) -> impl Fn(io::Error) -> Error + use<> {
    move |error| match error.raw_os_error() {
        Some(1 | 13) => Error::Forbidden { what: format!("cannot {step}"), error },
        _ => Error::Refused { device: block_device(id), step, error },
    }
}

/// What there is under a device's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Existing {
    Nothing,
    /// A device of this array whose end nobody has finished: it is not in use.
    Dead,
    /// One that waits for its next process, with its tag.
    Kept(u64),
}

/// Looks whether the kernel can have the device.
pub(super) fn look(id: u32, array: ArrayId, discard: bool) -> Result<Existing, Error> {
    let control = OpenOptions::new().read(true).write(true).open(CONTROL);
    control.map_err(|error| match error.kind() {
        // ENXIO, ENODEV: a node without its driver.
        _ if matches!(error.raw_os_error(), Some(2 | 6 | 19)) => Error::Missing { path: CONTROL },
        _ => Error::Forbidden { what: format!("cannot open {CONTROL}"), error },
    })?;
    prepare_folder(&UblkCtrl::run_dir())?;
    in_quiet_thread(move || {
        // Of no device: whether there are rings.
        let probe = UblkCtrl::new(None, -1, 0, 0, 0, 0, 0, UblkFlags::empty());
        probe.map_err(|error| refused(id, "use io_uring")(io_error(error)))?;
        let end = Instant::now() + SLOW;
        loop {
            let seen = Seen::of(id)?;
            match judge(seen, id, array, discard) {
                // The kernel takes a moment to see that a process is gone.
                Err(Error::InUse { .. }) if Instant::now() < end => sleep(LOOK),
                judged => return judged,
            }
        }
    })
}

/// The library has a file for each device there, for everybody's eyes. It would let everybody write there, too.
fn prepare_folder(path: &str) -> Result<(), Error> {
    match DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::Forbidden { what: format!("cannot make {path}"), error });
        }
        _ => {}
    }
    let there = std::fs::symlink_metadata(path)?;
    let own = rustix::process::geteuid().as_raw();
    if !there.is_dir() || there.mode() & 0o022 != 0 || there.uid() != own {
        return Err(Error::Open { path: path.to_owned() });
    }
    Ok(())
}

/// A device as the kernel describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    state: u32,
    pid: i32,
    flags: u64,
    tag: u64,
}

impl Seen {
    /// `None` if there is none.
    fn of(id: u32) -> Result<Option<Seen>, Error> {
        if !Path::new(&format!("/sys/class/ublk-char/ublkc{id}")).exists() {
            return Ok(None);
        }
        let info = existing(id)?.dev_info();
        let (state, pid) = (info.state.into(), info.ublksrv_pid);
        Ok(Some(Seen { state, pid, flags: info.flags, tag: info.ublksrv_flags }))
    }
}

/// What an export of the array can make of a device.
fn judge(seen: Option<Seen>, id: u32, array: ArrayId, discard: bool) -> Result<Existing, Error> {
    let Some(Seen { state, pid, flags, tag: has }) = seen else { return Ok(Existing::Nothing) };
    let device = block_device(id);
    let foreign = |whom| Err(Error::Foreign { device: block_device(id), whom });
    let ours = has >> 32 == tag(array, 0) >> 32;
    match state {
        sys::UBLK_S_DEV_DEAD if ours || discard => Ok(Existing::Dead),
        sys::UBLK_S_DEV_DEAD => foreign("another program, or another array's export"),
        sys::UBLK_S_DEV_LIVE => Err(Error::InUse { device, pid }),
        // Whatever the state is, nobody serves it.
        _ if discard => Ok(Existing::Kept(has)),
        _ if !ours => foreign("another program, or another array's export"),
        _ if flags & KEPT != KEPT => foreign("an export of another kind"),
        _ => Ok(Existing::Kept(has)),
    }
}

/// Controls a device that is there.
fn existing(id: u32) -> Result<UblkCtrl, Error> {
    control_of(id).map_err(refused(id, "describe the device"))
}

fn control_of(id: u32) -> io::Result<UblkCtrl> {
    // The library complains on standard error of a device without such a file.
    let path = format!("{}/{id:04}.json", UblkCtrl::run_dir());
    let made = OpenOptions::new().write(true).create_new(true).open(&path);
    let made = made.and_then(|mut file| file.write_all(b"{}"));
    let flags = UblkFlags::UBLK_DEV_F_RECOVER_DEV;
    // The kernel knows the sizes. The library makes room by the number of queues.
    let (name, depth) = (Some("lockify".into()), DEPTH.into());
    let control = UblkCtrl::new(name, id.cast_signed(), 1, depth, MAX_BYTES, 0, 0, flags);
    if made.is_ok() {
        let _ = std::fs::remove_file(&path);
    }
    control.map_err(io_error)
}

/// Does something on a thread that no signal interrupts.
fn in_quiet_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let work = move || {
        without_signals();
        work()
    };
    let thread = std::thread::Builder::new().name("ublk-look".into()).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has ended").into()))
}

/// What the control thread is told at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// The device goes; what waits for it is an error.
    Remove,
    /// The device stays for the next process.
    Leave,
}

/// A device that is served, by two threads.
pub(super) struct Control {
    id: u32,
    orders: SyncSender<Order>,
    ended: Receiver<Result<(), Error>>,
    over: Arc<AtomicBool>,
}

impl Control {
    /// Makes or takes over the device. `stopper` is used when the kernel has ended it.
    pub fn start(
        plan: Plan,
        existing: Existing,
        backend: Arc<dyn Backend>,
        stopper: Stopper,
    ) -> Result<Control, Error> {
        let id = plan.id;
        let (orders, next) = sync_channel(1);
        let (tell, ended) = channel();
        let (started, wait) = sync_channel(1);
        let over = Arc::new(AtomicBool::new(false));
        let queue_over = Arc::clone(&over);
        let work = move || {
            without_signals();
            let device = match Device::start(plan, existing, backend, (stopper, queue_over)) {
                Ok(device) => device,
                Err(error) => return drop(started.send(Err(error))),
            };
            let _ = started.send(Ok(()));
            // Without an order, the process has failed: the device is left to the next one, or ends with this one.
            let order = next.recv().unwrap_or(Order::Leave);
            let _ = tell.send(device.end(order));
        };
        std::thread::Builder::new().name("ublk-control".into()).spawn(work)?;
        match wait.recv_timeout(PATIENCE) {
            Ok(result) => result?,
            Err(RecvTimeoutError::Timeout) => return Err(late(id, "start the device")),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the thread of the device has ended").into());
            }
        }
        Ok(Control { id, orders, ended, over })
    }

    /// Returns true if the kernel's requests are served no more.
    pub fn has_ended(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Ends the device, or leaves it. Returns false if operations were still under way then.
    pub fn finish(self, order: Order) -> Result<bool, Error> {
        let _ = self.orders.send(order);
        let patience = if order == Order::Leave { SETTLING } else { PATIENCE };
        match self.ended.recv_timeout(patience) {
            Ok(result) => result.map(|()| true),
            Err(_) if order == Order::Leave => Ok(false),
            Err(_) => Err(late(self.id, "remove the device")),
        }
    }
}

fn late(id: u32, step: &'static str) -> Error {
    Error::Late { device: block_device(id), step, seconds: PATIENCE.as_secs() }
}

/// What the control thread has.
struct Device {
    plan: Plan,
    control: UblkCtrl,
    device: Arc<UblkDev>,
    queue: JoinHandle<io::Result<()>>,
    bell: Arc<Bell>,
    leave: Arc<AtomicBool>,
}

impl Device {
    fn start(
        plan: Plan,
        there: Existing,
        backend: Arc<dyn Backend>,
        (stopper, over): (Stopper, Arc<AtomicBool>),
    ) -> Result<Device, Error> {
        let control = match there {
            Existing::Kept(tag) if tag == plan.tag() && plan.reservation.is_some() => {
                take_over(&plan)?
            }
            Existing::Kept(tag) => {
                let lost = plan.reservation.and_then(|reservation| reservation.lost);
                if !plan.discard && lost.is_none_or(|lost| u64::from(lost) != tag & 0xffff_ffff) {
                    let (device, whom) = (block_device(plan.id), "another export of this array");
                    return Err(Error::Foreign { device, whom });
                }
                (plan.log)(&format!(
                    "{} is removed, for its export does not have the array any more: what waits for it gets errors",
                    block_device(plan.id)
                ));
                discard(plan.id)?;
                add(&plan)?
            }
            Existing::Dead => {
                discard(plan.id)?;
                add(&plan)?
            }
            Existing::Nothing => add(&plan)?,
        };
        let params = plan.params();
        let made = |device: &mut UblkDev| {
            device.tgt.dev_size = params.basic.dev_sectors << 9;
            device.tgt.params = params;
            // Room for the bell.
            device.tgt.sq_depth = device.dev_info.queue_depth + 1;
            device.tgt.cq_depth = device.dev_info.queue_depth + 1;
            device.set_target_json(serde_json::json!({ "array": plan.array.to_string() }));
            Ok(())
        };
        let device = UblkDev::new("lockify".into(), made, &control)
            .map_err(|error| plan.refused("open the device")(io_error(error)))?;
        let device = Arc::new(device);
        let (bell, leave) = (Arc::new(Bell::new()?), Arc::new(AtomicBool::new(false)));
        let requests = Requests::new(plan.export.clone(), backend, bell.clone(), plan.log);
        let (ready, thread) = sync_channel(1);
        let work = {
            let (device, bell, leave) = (device.clone(), bell.clone(), leave.clone());
            move || {
                let served = serve(&device, requests, (&bell, &leave), &ready);
                over.store(true, Relaxed);
                stopper.stop();
                served
            }
        };
        let queue = std::thread::Builder::new().name("ublk-queue".into()).spawn(work)?;
        let number = thread.recv().unwrap_or_else(|_| Err(io::Error::other("no queue")));
        let number = number.map_err(plan.refused("give the device a queue"))?;
        checked(control.configure_queue(&device, 0, number))
            .and_then(|()| checked(control.start_dev(&device)))
            .map_err(plan.refused("start the device"))?;
        if plan.reservation.is_some() {
            // Whatever comes now, the device is the next process's.
            control.disown();
        }
        Ok(Device { plan, control, device, queue, bell, leave })
    }

    fn end(self, order: Order) -> Result<(), Error> {
        let Device { plan, control, device, queue, bell, leave } = self;
        if order == Order::Leave {
            leave.store(true, Relaxed);
            bell.ring();
            return ended(queue).map_err(plan.refused("serve its requests"));
        }
        let stopped = checked(control.stop_dev());
        let served = ended(queue);
        drop(device);
        // Somebody else may have removed it.
        let gone = |error: &io::Error| error.raw_os_error() == Some(NO_DEVICE);
        if let Err(error) = stopped.and_then(|()| delete(&control))
            && !gone(&error)
        {
            return Err(plan.refused("remove the device")(error));
        }
        control.disown();
        served.map_err(plan.refused("serve its requests"))
    }
}

fn ended(queue: JoinHandle<io::Result<()>>) -> io::Result<()> {
    queue.join().unwrap_or_else(|_| Err(io::Error::other("the queue's thread has failed")))
}

/// Adds a new device.
fn add(plan: &Plan) -> Result<UblkCtrl, Error> {
    // If the kernel refuses the number because there is such a device, the library removes that. So it is never asked for one that
    // is there. A removed device has no path any more, and its number until nobody has it open.
    let end = Instant::now() + SLOW;
    loop {
        match control_of(plan.id) {
            Err(error) if error.raw_os_error() == Some(NO_DEVICE) => break,
            Err(error) => return Err(plan.refused("describe the device")(error)),
            Ok(_) if Instant::now() > end => {
                return Err(Error::Held { device: block_device(plan.id) });
            }
            Ok(_) => sleep(LOOK),
        }
    }
    let wanted = if plan.reservation.is_some() { KEPT } else { 0 };
    let (name, id) = (Some("lockify".into()), plan.id.cast_signed());
    let flags = UblkFlags::UBLK_DEV_F_ADD_DEV;
    let added = UblkCtrl::new(name, id, 1, DEPTH.into(), MAX_BYTES, wanted, plan.tag(), flags);
    let control = added.map_err(|error| plan.refused("add the device")(io_error(error)))?;
    let info = control.dev_info();
    if info.flags & wanted != wanted || info.max_io_buf_bytes < MAX_BYTES {
        let what = "it does not have what was asked for: use Linux 6.1 or later";
        return Err(plan.refused("add the device")(io::Error::other(what)));
    }
    Ok(control)
}

/// Takes over a device of the same reservation.
fn take_over(plan: &Plan) -> Result<UblkCtrl, Error> {
    let control = existing(plan.id)?;
    let mut has = ublk_params::default();
    checked(control.get_params(&mut has)).map_err(plan.refused("describe the device"))?;
    let info = control.dev_info();
    let fits = fit(&has, &plan.params());
    let fits =
        fits.and_then(|()| match (info.nr_hw_queues, info.queue_depth, info.max_io_buf_bytes) {
            (1, DEPTH, bytes) if bytes == MAX_BYTES => Ok(()),
            other => Err(format!("it has other queues ({other:?})")),
        });
    fits.map_err(|why| Error::Unfit { device: block_device(plan.id), why })?;
    if has.basic.dev_sectors != plan.params().basic.dev_sectors {
        (plan.log)(&format!(
            "{} keeps its size of {} bytes although the array has grown to {}: unmount it, and start the export anew",
            block_device(plan.id),
            has.basic.dev_sectors << 9,
            plan.export.size,
        ));
    }
    checked(control.start_user_recover()).map_err(plan.refused("have the device taken over"))?;
    Ok(control)
}

/// Why a device is another one than would be made now. It may be smaller, because arrays grow.
fn fit(has: &ublk_params, wants: &ublk_params) -> Result<(), String> {
    let ublk_params { basic, discard, .. } = has;
    if basic.dev_sectors > wants.basic.dev_sectors {
        return Err(format!(
            "it has {} bytes, and the array {}",
            basic.dev_sectors << 9,
            wants.basic.dev_sectors << 9
        ));
    }
    let told = |params: &ublk_param_basic| {
        (params.attrs, params.logical_bs_shift, params.physical_bs_shift, params.max_sectors)
    };
    let zeroes = (discard.max_write_zeroes_sectors, discard.max_discard_sectors);
    if told(basic) != told(&wants.basic) || zeroes != (MAX_ZEROES >> 9, 0) {
        return Err(
            "it was made with other options (--read-only, --durable-on-flush), or by another release"
                .into(),
        );
    }
    Ok(())
}

/// Removes a device that nobody serves.
fn discard(id: u32) -> Result<(), Error> {
    let control = existing(id)?;
    checked(control.stop_dev())
        .and_then(|()| delete(&control))
        .map_err(refused(id, "remove the device"))
}

/// Does not wait for whoever has it open.
fn delete(control: &UblkCtrl) -> io::Result<()> {
    match checked(control.del_dev_async()) {
        // Linux before 6.9 can only wait.
        Err(error) if matches!(error.raw_os_error(), Some(22 | 95)) => checked(control.del_dev()),
        deleted => deleted,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::door::testing::Memory;
    use crate::door::testing::export;

    const OURS: ArrayId = ArrayId([7; 16]);
    const OTHERS: ArrayId = ArrayId([8; 16]);

    fn seen(state: u32, tag: u64) -> Option<Seen> {
        Some(Seen { state, pid: 4242, flags: KEPT, tag })
    }

    fn plan(reservation: Option<Reservation>) -> Plan {
        let export = Arc::new(export(64 << 20));
        Plan { id: 3, array: OURS, export, reservation, discard: false, log: |_| () }
    }

    #[test]
    fn a_device_is_taken_over_by_its_own_array_only() {
        let plan = plan(Some(Reservation { number: 17, continued: true, lost: None }));
        let kept = seen(sys::UBLK_S_DEV_QUIESCED, plan.tag());
        assert_eq!(judge(None, 3, OURS, false).unwrap(), Existing::Nothing);
        assert_eq!(judge(kept, 3, OURS, false).unwrap(), Existing::Kept(plan.tag()));
        assert_ne!(plan.tag(), tag(OURS, 18));
        assert_ne!(plan.tag(), tag(OTHERS, 17));
        let why = judge(kept, 3, OTHERS, false).unwrap_err().to_string();
        assert!(why.contains("/dev/ublkb3 was left by another program, or another array"), "{why}");
        assert!(why.contains("--ublk-discard"), "{why}");
        assert_eq!(judge(kept, 3, OTHERS, true).unwrap(), Existing::Kept(plan.tag()));
        // One that does not repeat what was under way.
        let other = Seen { flags: sys::UBLK_F_USER_RECOVERY.into(), ..kept.unwrap() };
        assert!(matches!(judge(Some(other), 3, OURS, false), Err(Error::Foreign { .. })));
    }

    #[test]
    fn a_device_that_is_served_is_left_alone() {
        for discard in [false, true] {
            let live = seen(sys::UBLK_S_DEV_LIVE, tag(OURS, 17));
            let why = judge(live, 3, OURS, discard).unwrap_err().to_string();
            assert!(why.contains("/dev/ublkb3 is served by process 4242"), "{why}");
        }
        let dead = seen(sys::UBLK_S_DEV_DEAD, tag(OURS, 0));
        assert_eq!(judge(dead, 3, OURS, false).unwrap(), Existing::Dead);
        assert!(matches!(judge(dead, 3, OTHERS, false), Err(Error::Foreign { .. })));
        assert_eq!(judge(dead, 3, OTHERS, true).unwrap(), Existing::Dead);
    }

    #[test]
    fn a_device_fits_unless_it_is_larger_or_has_other_properties() {
        let wants = plan(None).params();
        let with = |change: &dyn Fn(&mut ublk_params)| {
            let mut has = wants;
            change(&mut has);
            fit(&has, &wants)
        };
        assert_eq!(with(&|_| ()), Ok(()));
        assert_eq!(with(&|has| has.basic.dev_sectors -= 8), Ok(()));
        let why = with(&|has| has.basic.dev_sectors += 8).unwrap_err();
        assert!(why.contains("it has 67112960 bytes, and the array 67108864"), "{why}");
        for change in [
            &(|has: &mut ublk_params| has.basic.attrs |= sys::UBLK_ATTR_READ_ONLY)
                as &dyn Fn(&mut ublk_params),
            &|has| has.basic.attrs |= sys::UBLK_ATTR_VOLATILE_CACHE,
            &|has| has.basic.logical_bs_shift = 9,
            &|has| has.basic.max_sectors *= 2,
            &|has| has.discard.max_discard_sectors = 8,
        ] {
            assert!(with(change).unwrap_err().contains("other options"));
        }
    }

    #[test]
    fn a_device_has_the_arrays_properties() {
        let with = |change: &dyn Fn(&mut Export)| {
            let mut plan = plan(None);
            let mut export = (*plan.export).clone();
            change(&mut export);
            plan.export = Arc::new(export);
            plan.params().basic
        };
        let plain = with(&|_| ());
        assert_eq!((plain.attrs, plain.dev_sectors, plain.logical_bs_shift), (0, 131_072, 12));
        assert_eq!(plain.io_opt_shift, 18);
        assert_eq!(with(&|export| export.stripe = 3 * 65536).io_opt_shift, 12);
        assert_eq!(with(&|export| export.read_only = true).attrs, sys::UBLK_ATTR_READ_ONLY);
        let cached = sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA;
        assert_eq!(with(&|export| export.volatile = true).attrs, cached);
    }

    #[test]
    fn a_folder_that_others_may_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ublksrvd");
        let text = path.to_str().unwrap();
        prepare_folder(text).unwrap();
        prepare_folder(text).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o022, 0);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let why = prepare_folder(text).unwrap_err().to_string();
        assert!(why.contains("can be changed by other users"), "{why}");
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(dir.path(), &path).unwrap();
        assert!(matches!(prepare_folder(text), Err(Error::Open { .. })));
    }

    /// Where the kernel has ublk, this is the lab's (`labs/kernels/tests/test_ublk.py`).
    #[test]
    fn a_kernel_without_ublk_is_an_error_that_says_so() {
        if Path::new(CONTROL).exists() {
            return;
        }
        let why = look(3, OURS, false).unwrap_err().to_string();
        assert!(why.contains("/dev/ublk-control is missing: this kernel has no ublk"), "{why}");
        let (stopper, _wakes) = Stopper::pair().unwrap();
        let started = Control::start(plan(None), Existing::Nothing, Memory::new(4096), stopper);
        assert!(started.is_err());
    }
}
