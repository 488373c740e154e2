//! Merges the histories of an array's processes. Each process writes its own, on the clock of its machine.
//!
//! A part without an `end` is that of a process that was killed, or lost its machine. Then a `crash` follows the last event of
//! its lives, or a `down` that of its device. Its last line may break off. The whole has an `end` if a part has one.

use std::collections::BTreeSet;
use std::io::BufRead;

use crate::array::Reader;
use crate::array::event::{Event, Kind, Life};
use crate::history::ReadError;

/// Why histories cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum MergeError<E> {
    /// One of them cannot be read.
    #[error("{error}")]
    Read {
        /// Which, from 0.
        part: usize,
        /// The reason.
        error: ReadError,
    },
    /// One of them does not begin as a history of an array does.
    #[error("it does not begin with the `begin` of an array's history")]
    NoBegin {
        /// Which, from 0.
        part: usize,
    },
    /// One of them is of another array than the first.
    #[error("it is of another array than the first: layout or scheme differ")]
    Other {
        /// Which, from 0.
        part: usize,
    },
    /// The receiver of the events failed.
    #[error("{0}")]
    Taker(E),
}

impl<E> MergeError<E> {
    /// Which part is at fault, from 0.
    pub fn part(&self) -> Option<usize> {
        match self {
            MergeError::Read { part, .. }
            | MergeError::NoBegin { part }
            | MergeError::Other { part } => Some(*part),
            MergeError::Taker(_) => None,
        }
    }
}

struct Part<R> {
    reader: Reader<R>,
    next: Option<Event>,
    lives: BTreeSet<Life>,
    devices: BTreeSet<u16>,
    /// An `end` has come, and nothing behind it.
    ended: bool,
    /// True if the merged history already has the death, or there was none.
    over: bool,
}

/// Gives `take` all events of all parts, by time; at the same time, in the order of the parts.
///
/// # Errors
/// [`MergeError`].
pub fn merge<R: BufRead, E>(
    readers: impl IntoIterator<Item = Reader<R>>,
    mut take: impl FnMut(&Event) -> Result<(), E>,
) -> Result<(), MergeError<E>> {
    let mut begin: Option<Event> = None;
    let mut parts = Vec::new();
    for (part, mut reader) in readers.into_iter().enumerate() {
        let first = reader.read().map_err(|error| MergeError::Read { part, error })?;
        let first = first.filter(|event| matches!(event.kind, Kind::Begin { .. }));
        let first = first.ok_or(MergeError::NoBegin { part })?;
        match &mut begin {
            None => begin = Some(first),
            Some(begin) if begin.kind == first.kind => begin.t = begin.t.min(first.t),
            Some(_) => return Err(MergeError::Other { part }),
        }
        let (lives, devices) = (BTreeSet::new(), BTreeSet::new());
        let (ended, over) = (false, false);
        parts.push(Part { reader, next: None, lives, devices, ended, over });
    }
    let Some(begin) = begin else { return Ok(()) };
    let mut last = begin.t;
    take(&begin).map_err(MergeError::Taker)?;
    let mut advanced: Vec<usize> = (0..parts.len()).collect();
    loop {
        for index in advanced.drain(..) {
            let part = &mut parts[index];
            part.advance(index)?;
            for kind in part.death() {
                take(&Event::new(last, kind)).map_err(MergeError::Taker)?;
            }
        }
        let times = parts.iter().enumerate().filter_map(|(i, p)| Some((p.next.as_ref()?.t, i)));
        let Some((_, index)) = times.min() else { break };
        if let Some(event) = parts[index].next.take() {
            last = event.t;
            take(&event).map_err(MergeError::Taker)?;
        }
        advanced.push(index);
    }
    if parts.iter().any(|part| part.ended) {
        take(&Event::new(last, Kind::End {})).map_err(MergeError::Taker)?;
    }
    Ok(())
}

impl<R: BufRead> Part<R> {
    fn advance<E>(&mut self, part: usize) -> Result<(), MergeError<E>> {
        loop {
            let next = match self.reader.read() {
                // Its writer was killed while it wrote.
                Err(ReadError::Truncated { .. }) => None,
                next => next.map_err(|error| MergeError::Read { part, error })?,
            };
            if matches!(&next, Some(Event { kind: Kind::End {}, .. })) {
                self.ended = true;
                continue;
            }
            // Events after an `end` show that it was not the end.
            self.ended &= next.is_none();
            match next.as_ref().map(|event| &event.kind) {
                Some(Kind::Begin { .. }) => return Err(MergeError::Other { part }),
                Some(
                    Kind::Read { by, .. }
                    | Kind::Write { by, .. }
                    | Kind::Flush { by, .. }
                    | Kind::Repair { by, .. }
                    | Kind::Try { by, .. }
                    | Kind::Done { by, .. },
                ) => {
                    self.lives.insert(*by);
                }
                Some(
                    Kind::DevRead { device, .. }
                    | Kind::DevWrite { device, .. }
                    | Kind::Fenced { device, .. }
                    | Kind::Dump { device, .. },
                ) => {
                    self.devices.insert(*device);
                }
                Some(
                    Kind::Crash { .. }
                    | Kind::Down { .. }
                    | Kind::Grown { .. }
                    | Kind::Fault { .. }
                    | Kind::Left { .. }
                    | Kind::End {},
                )
                | None => {}
            }
            self.next = next;
            return Ok(());
        }
    }

    /// The events in the whole that stand for the death of its process, when no more of its events follow.
    fn death(&mut self) -> Vec<Kind> {
        if self.next.is_some() || std::mem::replace(&mut self.over, true) || self.ended {
            return Vec::new();
        }
        let crashes = self.lives.iter().map(|&by| Kind::Crash { by });
        crashes.chain(self.devices.iter().map(|&device| Kind::Down { device })).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const BEGIN: &str = r#"{"t":T,"event":"begin","array":{"redundancy":"raid5","data":2,"groups":1,"unit":1,"block_size":4096,"stripes":9},"scheme":"timestamp-ordering"}"#;

    fn part(t: u64, lines: &[&str]) -> String {
        let mut text = BEGIN.replace('T', &t.to_string()) + "\n";
        lines.iter().for_each(|line| text += &format!("{line}\n"));
        text
    }

    fn merged(parts: &[String]) -> Result<Vec<Event>, MergeError<Infallible>> {
        let mut all = Vec::new();
        let readers = parts.iter().map(|part| Reader::new(part.as_bytes()));
        merge(readers, |event| {
            all.push(event.clone());
            Ok(())
        })?;
        Ok(all)
    }

    fn names(events: &[Event]) -> Vec<String> {
        let name = |event: &Event| {
            let value = serde_json::to_value(event).unwrap();
            format!("{} {}", event.t, value["event"].as_str().unwrap())
        };
        events.iter().map(name).collect()
    }

    const HOST: [&str; 2] = [
        r#"{"t":7,"event":"read","host":1,"incarnation":5,"op":1,"start":0,"count":1}"#,
        r#"{"t":8,"event":"try","host":1,"incarnation":5,"op":1,"seq":1}"#,
    ];
    const DEVICE: &str = r#"{"t":9,"event":"devread","device":0,"host":1,"incarnation":5,"seq":1,"start":0,"count":1}"#;

    #[test]
    fn events_are_in_the_order_of_time_and_the_killed_crash() {
        let host = part(4, &HOST);
        let device = part(3, &[DEVICE, r#"{"t":20,"event":"end"}"#]);
        let all = merged(&[host.clone(), device]).unwrap();
        assert_eq!(names(&all), ["3 begin", "7 read", "8 try", "8 crash", "9 devread", "9 end"]);
        // The device is killed, too, in the middle of a line.
        let cut = part(3, &[DEVICE]) + r#"{"t":10,"eve"#;
        let all = merged(&[host, cut]).unwrap();
        assert_eq!(names(&all), ["3 begin", "7 read", "8 try", "8 crash", "9 devread", "9 down"]);
    }

    #[test]
    fn what_does_not_belong_together_is_named() {
        let other = part(3, &[]).replace("\"data\":2", "\"data\":3");
        let wrong = merged(&[part(3, &HOST), other]).unwrap_err();
        assert!(matches!(wrong, MergeError::Other { part: 1 }), "{wrong:?}");
        let wrong = merged(&[part(3, &HOST), HOST[0].to_owned()]).unwrap_err();
        assert_eq!(wrong.part(), Some(1));
        let wrong = merged(&[part(3, &["nonsense"])]).unwrap_err();
        assert!(matches!(wrong, MergeError::Read { part: 0, .. }), "{wrong:?}");
        assert_eq!(merged(&[]).unwrap(), []);
    }
}
