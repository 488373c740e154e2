//! How an array's processes stand, for who only asks.

use std::time::{Duration, Instant};

use lockify_trust::Identity;

use crate::ArrayFile;
use crate::wire::{Event, Frame, Me, Net, Report, Role, Target};

/// A process's report about itself, or the reason of its silence.
pub type Answer = Result<Report, String>;

/// The reports of an array's processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answers {
    /// Devices and witnesses, by id.
    pub voters: Vec<Answer>,
    /// The lock server, if the scheme has one.
    pub lock_server: Option<Answer>,
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
    let mut answers = answers.into_iter().map(|answer| answer.unwrap_or_else(silent));
    let voters = answers.by_ref().take(file.voters().count()).collect();
    Ok(Answers { voters, lock_server: answers.next() })
}
