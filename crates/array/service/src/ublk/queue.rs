//! The thread that takes the kernel's requests and gives it the answers.

use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;

use bytes::Bytes;
use io_uring::{opcode, types};
use libublk::ctrl::UblkCtrl;
use libublk::helpers::IoBuf;
use libublk::io::{BufDesc, BufDescList, UblkDev, UblkIOCtx, UblkQueue};
use libublk::{UblkError, UblkIORes, UblkUringData, sys};
use nix::sys::signal::SigSet;
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::MAX_BYTES;
use super::bell::Bell;
use super::error::io_error;
use super::requests::{Answer, Requests};

/// The rest of the process has a signal's handlers run: the library takes an interrupted call for the end of a queue.
pub(super) fn without_signals() {
    // Only an invalid set is refused.
    let _ = SigSet::all().thread_block();
}

/// Serves the device's queue until the kernel has ended it, or until nothing is under way and it was asked to leave. `ready` gets
/// this thread's number when the kernel may begin.
pub(super) fn serve(
    device: &UblkDev,
    mut requests: Requests,
    (bell, leave): (&Arc<Bell>, &AtomicBool),
    ready: &SyncSender<Result<i32, std::io::Error>>,
) -> std::io::Result<()> {
    without_signals();
    let thread = UblkCtrl::init_queue_thread();
    let depth = device.dev_info.queue_depth;
    let mut buffers: Vec<IoBuf<u8>> = (0..depth).map(|_| IoBuf::new(MAX_BYTES as usize)).collect();
    let begun = UblkQueue::new(0, device)
        .and_then(|queue| queue.submit_fetch_commands_unified(BufDescList::Slices(Some(&buffers))))
        .and_then(|queue| await_bell(&queue, bell).map(|()| queue));
    // Its drop waits until the kernel has answered all that it was asked for: for ever, if the device stays. The end of the
    // thread, and with it of the ring, is what the kernel notices then.
    let queue = match begun {
        Ok(queue) => ManuallyDrop::new(queue),
        Err(error) => {
            // Who waits hears of the thread's end otherwise.
            let _ = ready.send(Err(io_error(error)));
            return Ok(());
        }
    };
    let _ = ready.send(Ok(thread));
    let mut arrived = Vec::new();
    loop {
        let (mut rung, mut refused) = (false, 0);
        let waited = queue.flush_and_wake_io_tasks(
            |data, entry, _| match entry.result() {
                _ if data & UblkUringData::Target as u64 != 0 => rung = true,
                code if code == sys::UBLK_IO_RES_OK as i32 => {
                    arrived.push(UblkIOCtx::user_data_to_tag(data) as u16);
                }
                sys::UBLK_IO_RES_ABORT => {}
                code => refused = code,
            },
            1,
        );
        match waited {
            Ok(_) => {}
            Err(UblkError::QueueIsDown) => {
                // It has the device open.
                drop(ManuallyDrop::into_inner(queue));
                return Ok(());
            }
            Err(UblkError::IOError(error)) if is_passing(&error) => {}
            Err(error) => return Err(io_error(error)),
        }
        if refused != 0 {
            return Err(std::io::Error::from_raw_os_error(refused.saturating_abs()));
        }
        let leaves = leave.load(Relaxed);
        for tag in arrived.drain(..) {
            // What arrives later is the next process's.
            let buffer = buffers.get(usize::from(tag)).filter(|_| !leaves);
            let Some(buffer) = buffer else { continue };
            if let Some(answer) = requests.begin(tag, queue.get_iod(tag), buffer.as_slice()) {
                give(&queue, &buffers, answer)?;
            }
        }
        if rung {
            bell.quiet();
            while let Some(answer) = requests.next(&mut |tag, data| put(&mut buffers, tag, data)) {
                give(&queue, &buffers, answer)?;
            }
            await_bell(&queue, bell).map_err(io_error)?;
        }
        if leaves && requests.under_way() == 0 {
            // The last answers reach the kernel, or it repeats these requests.
            let _ = queue.flush_and_wake_io_tasks(|_, _, _| (), 0);
            return Ok(());
        }
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    let passing = [Errno::INTR, Errno::AGAIN, Errno::BUSY];
    Errno::from_io_error(error).is_some_and(|errno| passing.contains(&errno))
}

/// Has the ring wake the thread when the bell rings next.
fn await_bell(queue: &UblkQueue<'_>, bell: &Bell) -> Result<(), UblkError> {
    let readable = PollFlags::IN.bits().into();
    let poll = opcode::PollAdd::new(types::Fd(bell.as_raw_fd()), readable);
    let data = UblkIOCtx::build_user_data(0, 0, 0, true);
    queue.ublk_submit_sqe_sync(poll.build().user_data(data))
}

fn put(buffers: &mut [IoBuf<u8>], tag: u16, data: &[Bytes]) -> bool {
    let Some(buffer) = buffers.get_mut(usize::from(tag)) else { return false };
    let mut rest = buffer.as_mut_slice();
    for piece in data {
        let Some((here, after)) = rest.split_at_mut_checked(piece.len()) else { return false };
        here.copy_from_slice(piece);
        rest = after;
    }
    true
}

/// Gives the kernel an answer, and the tag for another request.
fn give(queue: &UblkQueue<'_>, buffers: &[IoBuf<u8>], answer: Answer) -> std::io::Result<()> {
    let (tag, result) = answer;
    let buffer = buffers.get(usize::from(tag)).map_or(&[][..], IoBuf::as_slice);
    let result = Ok(UblkIORes::Result(result));
    queue.complete_io_cmd_unified(tag, BufDesc::Slice(buffer), result).map_err(io_error)
}
