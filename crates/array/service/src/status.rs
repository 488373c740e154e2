//! How an array's processes stand, for who only asks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockify_array::{ArrayState, DeviceId, ServerId};
use lockify_trust::{Address, Identity};

use crate::ArrayFile;
use crate::wire::{Event, Frame, Me, Net, Peer, Report, Role, Software, Target, Whom};

/// A process's report about itself, or the reason of its silence.
pub type Answer = Result<Report, String>;

/// The reports of an array's processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answers {
    /// Devices and witnesses that vote, by id.
    pub voters: Vec<Answer>,
    /// The devices of groups that came later, or that the array's file has for that, with their addresses.
    pub added: BTreeMap<DeviceId, (Address, Answer)>,
    /// The lock servers, by id; none if the scheme has none.
    pub lock_servers: Vec<Answer>,
    /// Which software they are. Nothing of a process of an older release.
    pub software: BTreeMap<Peer, Software>,
}

impl Answers {
    /// The newest state of the array that any of them knows.
    pub fn newest(&self) -> Option<&ArrayState> {
        let added = self.added.values().map(|(_, answer)| answer);
        let reports = self.voters.iter().chain(added).flatten();
        reports.map(|report| &report.state).max_by_key(|state| state.epoch)
    }

    /// The answer of a device or witness.
    pub fn of(&self, device: DeviceId) -> Option<&Answer> {
        let added = || self.added.get(&device).map(|(_, answer)| answer);
        self.voters.get(usize::from(device.0)).or_else(added)
    }

    /// All devices and witnesses, by id.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &Answer)> {
        let added = self.added.iter().map(|(device, (_, answer))| (*device, answer));
        (0..).map(DeviceId).zip(&self.voters).chain(added)
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
    let is_meant = |target: &Target| target.whom == whom;
    // Nobody is asked where the file is enough: some may be down, and questions to them take their time.
    let agreed = || {
        let answers = ask(file, identity.clone(), QUESTION).ok()?;
        Target::added(file, answers.newest()?).into_iter().find(is_meant)
    };
    let target = Target::in_file(file).into_iter().find(is_meant).or_else(agreed);
    let target = target.ok_or_else(|| format!("the array has no device {}", device.0))?;
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

/// How long it may take to find the address of a device that the array's file does not have.
const QUESTION: Duration = Duration::from_secs(3);

/// Asks every device and witness, and the lock server. Devices that the array has got later are found by its state.
///
/// # Errors
/// The system has no sockets; or an address that others can reach, without keys.
pub fn ask(
    file: &ArrayFile,
    identity: Identity,
    patience: Duration,
) -> Result<Answers, std::io::Error> {
    let mut all = Answers {
        voters: vec![Err(SILENT.to_owned()); file.voters().count()],
        added: BTreeMap::new(),
        lock_servers: vec![Err(SILENT.to_owned()); file.lock_servers().count()],
        software: BTreeMap::new(),
    };
    let known = Target::in_file(file);
    ask_these(file, identity.clone(), patience, &known, &mut all)?;
    let agreed = all.newest().map_or_else(Vec::new, |state| Target::added(file, state));
    let is_new = |target: &Target| known.iter().all(|known| known.whom != target.whom);
    let agreed: Vec<Target> = agreed.into_iter().filter(is_new).collect();
    if !agreed.is_empty() {
        ask_these(file, identity, patience, &agreed, &mut all)?;
    }
    Ok(all)
}

/// The answer of one who gives none.
const SILENT: &str = "it does not answer";

fn ask_these(
    file: &ArrayFile,
    identity: Identity,
    patience: Duration,
    targets: &[Target],
    all: &mut Answers,
) -> Result<(), std::io::Error> {
    if let Some(exposed) = targets.iter().find(|target| !identity.allows_at(&target.address)) {
        let why = crate::host::OpenError::Exposed(exposed.address.clone());
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why.to_string()));
    }
    let mut net = Net::new(Me::new(file, identity, Role::Watcher), targets, |_| {})?;
    let mut answers: Vec<Option<Answer>> = targets.iter().map(|_| None).collect();
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
                    all.software.insert(whom.into(), software);
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
    for (target, answer) in targets.iter().zip(answers) {
        let answer = answer.unwrap_or_else(|| Err(SILENT.to_owned()));
        match target.whom {
            Whom::Device(device) => match all.voters.get_mut(usize::from(device.0)) {
                Some(place) => *place = answer,
                None => drop(all.added.insert(device, (target.address.clone(), answer))),
            },
            Whom::Server(ServerId(id)) => {
                if let Some(place) = all.lock_servers.get_mut(usize::from(id)) {
                    *place = answer;
                }
            }
        }
    }
    Ok(())
}
