//! How an array's processes stand, for who only asks.

use std::time::{Duration, Instant};

use lockify_array::DeviceId;
use lockify_trust::Identity;

use crate::ArrayFile;
use crate::wire::{Event, Frame, Me, Net, Report, Role, Target, Whom};

/// What a process says of itself, or why it does not.
pub type Answer = Result<Report, String>;

/// Asks every device and witness, by id.
///
/// # Errors
/// The system has no sockets; or an address that others can reach, without keys.
pub fn ask(
    file: &ArrayFile,
    identity: Identity,
    patience: Duration,
) -> Result<Vec<Answer>, std::io::Error> {
    let targets = file.voters().map(|entry| Target {
        whom: Whom::Device(DeviceId(entry.id)),
        address: entry.address,
        node: entry.node,
    });
    let targets: Vec<Target> = targets.collect();
    if let Some(exposed) = targets.iter().find(|target| !identity.allows(target.address)) {
        let why = crate::host::OpenError::Exposed(exposed.address);
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why.to_string()));
    }
    let mut net = Net::new(Me::new(file, identity, Role::Watcher), &targets, |_| {})?;
    let mut answers: Vec<Option<Answer>> = targets.iter().map(|_| None).collect();
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
                Event::Answered { whom, frame: Frame::Report(report) } => (whom, Ok(report)),
                Event::Answered { whom, .. } => (whom, Err("it says what makes no sense".into())),
                Event::Down { whom, why } => (whom, Err(why.text())),
                Event::Came { .. } | Event::Heard { .. } | Event::Left { .. } => continue,
            };
            let index = targets.iter().position(|target| target.whom == whom);
            if let Some(place) = index.and_then(|index| answers.get_mut(index))
                && place.is_none()
            {
                *place = Some(answer);
            }
        }
    }
    let silent = || Err("it does not answer".to_owned());
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(silent)).collect())
}
