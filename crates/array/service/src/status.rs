//! How an array's processes stand, for who only asks.

use std::time::{Duration, Instant};

use lockify_array::{ArrayState, DeviceId};
use lockify_trust::Identity;

use crate::ArrayFile;
use crate::wire::{Event, Frame, Me, Net, Report, Role, Software, Target, Whom};

/// A process's report about itself, or the reason of its silence.
pub type Answer = Result<Report, String>;

/// The reports of an array's processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answers {
    /// Devices and witnesses, by id.
    pub voters: Vec<Answer>,
    /// The lock servers, by id; none if the scheme has none.
    pub lock_servers: Vec<Answer>,
    /// Which software they are, in the same order: voters, then lock servers. Nothing of a process of an older release.
    pub software: Vec<Option<Software>>,
}

impl Answers {
    /// The newest state of the array that any of them knows.
    pub fn newest(&self) -> Option<&ArrayState> {
        let reports = self.voters.iter().flatten();
        reports.map(|report| &report.state).max_by_key(|state| state.epoch)
    }
}

/// A device begins a new era of the membership alone. The others join it. By this, an operator says that the media of
/// more than half of the voters are lost for good.
///
/// # Errors
/// The device refuses, or does not answer. The error has the reason.
pub fn recover(
    file: &ArrayFile,
    identity: Identity,
    device: DeviceId,
    patience: Duration,
) -> Result<(), String> {
    tell(file, identity, device, &Frame::Recover, patience)
}

/// A device's medium gets room for so many stripes. The array does not use it before that is agreed ([`Change::Grow`]).
///
/// # Errors
/// The device has not enough space, or does not answer. The error has the reason.
///
/// [`Change::Grow`]: lockify_array::Change::Grow
pub fn make_room(
    file: &ArrayFile,
    identity: Identity,
    device: DeviceId,
    stripes: u64,
    patience: Duration,
) -> Result<(), String> {
    tell(file, identity, device, &Frame::Grow(stripes), patience)
}

/// Has a device do something, as an operator.
fn tell(
    file: &ArrayFile,
    identity: Identity,
    device: DeviceId,
    order: &Frame,
    patience: Duration,
) -> Result<(), String> {
    let whom = Whom::Device(device);
    let target = Target::all(file).into_iter().find(|target| target.whom == whom);
    let target = target.ok_or_else(|| format!("the array's file has no device {}", device.0))?;
    if !identity.allows_at(&target.address) {
        return Err(crate::host::OpenError::Exposed(target.address).to_string());
    }
    let net = Net::new(Me::new(file, identity, Role::Watcher), &[target], |_| {});
    let mut net = net.map_err(|e| e.to_string())?;
    let mut events = mio::Events::with_capacity(64);
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("device {} does not answer", device.0));
        }
        net.turn(left, &mut events).map_err(|e| e.to_string())?;
        while let Some(event) = net.event() {
            match event {
                Event::Up { key, .. } => net.say(key, order),
                Event::Answered {
                    frame: Frame::Recovered(result) | Frame::Grown(result), ..
                } => {
                    return result;
                }
                Event::Answered { .. } => return Err("it says what makes no sense".into()),
                Event::Down { why, .. } => return Err(why.text()),
                Event::Came { .. } | Event::Heard { .. } | Event::Left { .. } => {}
            }
        }
    }
}

/// Asks every device and witness, and the lock server.
///
/// # Errors
/// The system has no sockets; or an address that others can reach, without keys.
pub fn ask(
    file: &ArrayFile,
    identity: Identity,
    patience: Duration,
) -> Result<Answers, std::io::Error> {
    let targets = Target::all(file);
    if let Some(exposed) = targets.iter().find(|target| !identity.allows_at(&target.address)) {
        let why = crate::host::OpenError::Exposed(exposed.address.clone());
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why.to_string()));
    }
    let mut net = Net::new(Me::new(file, identity, Role::Watcher), &targets, |_| {})?;
    let mut answers: Vec<Option<Answer>> = targets.iter().map(|_| None).collect();
    let mut told: Vec<Option<Software>> = targets.iter().map(|_| None).collect();
    let index = |whom| targets.iter().position(|target: &Target| target.whom == whom);
    let mut events = mio::Events::with_capacity(64);
    let end = Instant::now() + patience;
    while answers.iter().any(Option::is_none) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        net.turn(left, &mut events)?;
        while let Some(event) = net.event() {
            let (whom, answer) = match event {
                Event::Up { key, .. } => {
                    net.say(key, &Frame::Query);
                    continue;
                }
                Event::Answered { whom, frame: Frame::Software(software) } => {
                    if let Some(place) = index(whom).and_then(|index| told.get_mut(index)) {
                        *place = Some(software);
                    }
                    continue;
                }
                Event::Answered { whom, frame: Frame::Report(report) } => (whom, Ok(report)),
                Event::Answered { whom, .. } => (whom, Err("it says what makes no sense".into())),
                Event::Down { whom, why } => (whom, Err(why.text())),
                Event::Came { .. } | Event::Heard { .. } | Event::Left { .. } => continue,
            };
            if let Some(place) = index(whom).and_then(|index| answers.get_mut(index))
                && place.is_none()
            {
                *place = Some(answer);
            }
        }
    }
    let silent = || Err("it does not answer".to_owned());
    let mut answers = answers.into_iter().map(|answer| answer.unwrap_or_else(silent));
    let voters = answers.by_ref().take(file.voters().count()).collect();
    Ok(Answers { voters, lock_servers: answers.collect(), software: told })
}
