//! The messages for one end, until it asks for them.

use std::collections::{BTreeMap, VecDeque};

use super::frame::{Frame, Who};
use super::{Event, HOME, QUEUE, RendezvousError};

/// The cost of a frame besides its bytes.
const FRAME: usize = 32;

/// Frames that have come, and who is there by those that were asked for.
#[derive(Default)]
pub(super) struct Incoming {
    frames: VecDeque<Frame>,
    bytes: usize,
    lives: BTreeMap<u16, u64>,
}

impl Incoming {
    /// Returns true if a sender that would add a message has to wait. Arrivals and departures are added anyway: there
    /// are not more of them than of participants and strangers.
    pub fn is_full(&self) -> bool {
        self.bytes >= QUEUE
    }

    pub fn add(&mut self, frame: Frame) {
        self.bytes += cost(&frame);
        self.frames.push_back(frame);
    }

    pub fn take(&mut self) -> Option<Event> {
        loop {
            let frame = self.frames.pop_front()?;
            self.bytes -= cost(&frame);
            match frame {
                Frame::Joined(Who { rank, life }) => {
                    self.lives.insert(rank, life);
                    return Some(Event::Joined { rank });
                }
                Frame::Gone { rank } => {
                    self.lives.remove(&rank);
                    return Some(Event::Gone { rank });
                }
                Frame::Told { from, bytes } => return Some(Event::Told { from, bytes }),
                Frame::Ended => return Some(Event::Ended),
                // Nobody adds others.
                _ => {}
            }
        }
    }

    /// The participant behind a rank, for one that has seen the events so far.
    pub fn who(&self, rank: u16) -> Result<Who, RendezvousError> {
        let life = if rank == HOME { Some(0) } else { self.lives.get(&rank).copied() };
        life.map(|life| Who { rank, life }).ok_or(RendezvousError::Nobody(rank))
    }
}

fn cost(frame: &Frame) -> usize {
    match frame {
        Frame::Told { bytes, .. } => FRAME + bytes.len(),
        _ => FRAME,
    }
}
