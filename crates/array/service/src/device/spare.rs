//! A spare medium: a device goes on with it when its own has failed, and has itself rebuilt from the others. Others find the same
//! process at the same address. To them, its medium was replaced.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockify_array::{DeviceId, Usage};

use super::{ServeError, Serving};
use crate::ArrayFile;
use crate::host::{Array, Joining, this_node};
use crate::status::ask;
use crate::store::{Space, Store};
use crate::upkeep::{Admission, Pace, admit, rebuild, wait_until};

/// How long the array may take to answer; then it is tried again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts, and between two looks whether the array has let the device in.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_millis(100)];
/// How long this host may take to leave.
const FAREWELL: Duration = Duration::from_secs(2);

/// Makes a spare medium ready. Returns true if it has taken the place of the device's own before.
///
/// # Errors
/// [`ServeError`]: it cannot be used, or the device is a witness, which has nothing to rebuild.
pub fn make_spare(file: &ArrayFile, serving: &Serving, path: &Path) -> Result<bool, ServeError> {
    let Serving { device, access, sparse, log, .. } = *serving;
    if file.is_witness(device) {
        let last = file.layout.devices() - 1;
        return Err(ServeError::SpareOfWitness { id: device.0, last });
    }
    let space = if sparse { Space::Sparse } else { Space::Allocated { log } };
    Ok(Store::make_spare(path, file, device.0, access, space)?)
}

/// Has a device rebuilt that goes on with its spare.
pub struct Rebuilder {
    file: ArrayFile,
    device: DeviceId,
    joining: Joining,
    pace: Pace,
    stop: Arc<AtomicBool>,
    log: fn(&str),
}

impl Rebuilder {
    /// Begins, on a thread of its own. It ends when the device is good, or at `stop`.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        file: &ArrayFile,
        serving: &Serving,
        pace: Pace,
        stop: Arc<AtomicBool>,
    ) -> std::io::Result<()> {
        let Serving { device, log, .. } = *serving;
        let identity = serving.identity.clone();
        let (memory, node, usage) = (None, this_node(), Usage::Upkeep);
        let joining = Joining { memory, node, usage, identity, patience: PATIENCE, log };
        let this = Rebuilder { file: file.clone(), device, joining, pace, stop, log };
        std::thread::Builder::new().name("rebuild".into()).spawn(move || this.run())?;
        Ok(())
    }

    fn run(&self) {
        let mut told = String::new();
        while !self.stop.load(Relaxed) {
            match self.attempt() {
                Ok(()) => return,
                Err(why) if self.stop.load(Relaxed) || why == told => {}
                Err(why) => {
                    (self.log)(&format!(
                        "device {} cannot be rebuilt on its spare yet: {why}; it is tried again",
                        self.device.0
                    ));
                    told = why;
                }
            }
            wait_until(Instant::now() + PAUSES[0], &self.stop);
        }
    }

    fn attempt(&self) -> Result<(), String> {
        let array = Array::open(&self.file, &self.joining).map_err(|e| e.to_string())?;
        let result = self.rebuild(&array);
        array.leave(FAREWELL);
        result
    }

    fn rebuild(&self, array: &Array) -> Result<(), String> {
        let device = self.device;
        let end = Instant::now() + PATIENCE;
        let mut begun = false;
        loop {
            let answers = ask(&self.file, self.joining.identity.clone(), PATIENCE);
            let answers = answers.map_err(|e| e.to_string())?;
            match admit(array, &self.file, &answers, device).map_err(|e| e.to_string())? {
                Admission::Good => return Ok(()),
                Admission::Ready => break,
                Admission::Begun => begun = true,
                Admission::Alone(why) | Admission::Absent(why) => return Err(why),
                Admission::Waits if Instant::now() > end => {
                    return Err("the others have not let it in".into());
                }
                Admission::Waits => {}
            }
            if !wait_until(Instant::now() + PAUSES[1], &self.stop) {
                return Ok(());
            }
        }
        (self.log)(&format!("device {} is being rebuilt on its spare", device.0));
        let rebuilt = rebuild(array, device, begun, &self.pace, &|_| ());
        let rebuilt = rebuilt.map_err(|e| e.to_string())?;
        (self.log)(&match rebuilt.is_clean() {
            true => format!("device {} is rebuilt on its spare, and good", device.0),
            false => format!(
                "device {} is rebuilt on its spare, and in use again{}",
                device.0,
                rebuilt.of_lost()
            ),
        });
        Ok(())
    }
}
