//! `lockify array export --ublk`: an array as a block device of this machine's kernel.

use std::process::ExitCode;
use std::sync::Arc;

use lockify_volume::ArrayFile;
use lockify_volume::host::Array;
use lockify_volume::ublk::{Ended as DeviceEnded, Server};

use super::{Args, fenced, stop_by_signals, warn_of_others};
use crate::array::{FAREWELL, announce, say};
use crate::exit::{Code, Ended, Failure, OrFail as _};

/// Leaves without a device of its own. One that is there may rely on a reservation that this process has not made.
fn give_up(array: &Array) {
    match array.reservation() {
        Some(reservation) if reservation.continued => array.leave_reserved(FAREWELL),
        _ => array.leave(FAREWELL),
    }
}

pub(super) fn run(args: &Args, id: u32) -> Ended {
    let file = ArrayFile::read(&args.array).or_fail(Code::Unreadable)?;
    let identity = args.secure.renewed_identity(say)?;
    // Before the array: what the kernel does not do, is told at once.
    let server =
        Server::new(id, &file, args.export(&file), args.ublk_discard, say).or_fail(Code::Failed)?;
    stop_by_signals(|| server.stopper())?;
    let joining = args.joining(identity);
    let history = args.history.as_deref();
    let opened = match (args.exclusive && args.state.is_some(), history) {
        (true, _) => Array::open_reserved(&file, &joining, history),
        (false, Some(history)) => Array::open_recorded(&file, &joining, history),
        (false, None) => Array::open(&file, &joining),
    };
    let array = opened.or_fail(Code::Failed)?;
    let stop = server.stopper().or_fail(Code::Failed)?;
    array.on_fence(Box::new(move || stop.stop()));
    let started = server.start(Arc::new(array.clone()), array.reservation());
    let running = started.inspect_err(|_| give_up(&array)).or_fail(Code::Failed)?;
    let taken_over = if running.is_taken_over() { ", taken over" } else { "" };
    let path = running.path();
    announce(&format!("host {} serves the array: {path}{taken_over}\n", array.number()))?;
    if !running.is_kept() {
        say(&format!(
            "{path} ends with this process: with --exclusive and --state, it would wait for the next one"
        ));
    }
    warn_of_others(&array);
    let ended = running.wait(|| array.is_fenced()).or_fail(Code::Failed);
    let ended = ended.inspect_err(|_| array.leave_reserved(FAREWELL))?;
    match ended {
        DeviceEnded::Left | DeviceEnded::Abandoned => array.leave_reserved(FAREWELL),
        _ => array.leave(FAREWELL),
    }
    match ended {
        DeviceEnded::Stopped => Ok(ExitCode::SUCCESS),
        DeviceEnded::Left | DeviceEnded::Abandoned => {
            say(&format!("{path} is in use, and waits for the next export with the same --state"));
            Ok(ExitCode::SUCCESS)
        }
        DeviceEnded::Fenced => Err(fenced()),
        DeviceEnded::Removed => {
            Err(Failure::new(Code::Failed, format!("somebody else has removed {path}")))
        }
    }
}
