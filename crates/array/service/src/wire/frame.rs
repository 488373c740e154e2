//! The messages between an array's processes.

use bytes::Bytes;
use lockify_array::message::{Answer, Call, Reply, Request};
use lockify_array::{
    ArrayState, Attended, CopyMessage, DeviceId, Group, Life, OpId, ServerId, ServerReply,
    ServerRequest, Time,
};
use lockify_membership::Vote;
use lockify_trust::Versions;
use lockify_trust::speech::{Framed, printable};
use serde::{Deserialize, Serialize};

use super::report::{Peer, Report, Software};
use crate::ArrayId;

/// The role of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// A life of a host.
    Host(Life),
    /// A device or witness.
    Device {
        id: DeviceId,
        /// Its process's life, larger than those before.
        life: u64,
        /// Its blocks are the array's: it has served before.
        in_service: bool,
    },
    /// Somebody who only asks how it stands.
    Watcher,
    /// A lock server.
    Server(ServerId),
}

/// Whom a process talks to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Whom {
    Device(DeviceId),
    Server(ServerId),
}

impl Role {
    /// The name of a peer in this role; a watcher has none.
    pub fn peer(&self) -> Option<Peer> {
        match *self {
            Role::Host(life) => Some(Peer::Host(life.host.0)),
            Role::Device { id, .. } => Some(Peer::Device(id.0)),
            Role::Server(id) => Some(Peer::LockServer(id.0)),
            Role::Watcher => None,
        }
    }
}

impl From<Whom> for Peer {
    fn from(whom: Whom) -> Peer {
        match whom {
            Whom::Device(id) => Peer::Device(id.0),
            Whom::Server(id) => Peer::LockServer(id.0),
        }
    }
}

impl std::fmt::Display for Whom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Whom::Device(device) => write!(f, "device {}", device.0),
            Whom::Server(server) => server.fmt(f),
        }
    }
}

/// The first that who connects says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub cluster: String,
    /// The node whose keys it shows.
    pub node: u32,
    /// Whom it believes to talk to.
    pub to: Whom,
    pub array: ArrayId,
    /// Of the array's file.
    pub digest: u64,
    pub role: Role,
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The life of who answers.
    pub life: u64,
    /// See [`Role::Device`].
    pub in_service: bool,
}

/// A frame.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Frame {
    /// No, because.
    Refused(String),
    Hello(Hello),
    Welcome(Welcome),
    /// Of a host, to a device.
    Request(Request),
    Reply(Reply),
    /// Of a host, to a lock server.
    Ask(ServerRequest),
    Answer(ServerReply),
    /// Between devices: who is there.
    Vote(Vote),
    /// Of anybody: how does it stand?
    Query,
    Report(Report),
    /// To a host that is welcome, but not now, because.
    Later(String),
    /// The array's state, as the sender knows it. A host that waits only for an excluded device learns of it by this. Lock servers tell
    /// devices, and devices tell those of added groups, who do not vote.
    State(ArrayState),
    /// Between devices: what time is it?
    AskTime {
        /// The time of the question, by the asker's clock.
        asked: u64,
    },
    /// The answer.
    Time {
        /// As in the question.
        asked: u64,
        /// By the clock of who answers.
        time: Time,
    },
    /// Between devices: whether the sender is settled, so that another one of its group may be given up. Said on each new
    /// connection, and when it changes.
    Settled(bool),
    /// An operator's request: the media of more than half of the voters are lost for good, so begin a new era.
    Recover,
    /// The new era has begun, or the reason why not.
    Recovered(Result<(), String>),
    /// An operator's request, to a device: its medium is to have room for so many stripes.
    Grow(u64),
    /// It has, durably; or the reason why not.
    Grown(Result<(), String>),
    /// Of a lock server, to a device: it is there, and serves in this term, if it does.
    Attend(Option<u64>),
    /// The answer.
    Attended(Attended),
    /// Between lock servers.
    Copy(CopyMessage),
    /// Before a report, from [`TELLS_SOFTWARE`](crate::versions::TELLS_SOFTWARE) on.
    Software(Software),
    /// The groups of devices that an array has got, and an encoded frame with the array's state, which lacks them. From
    /// [`HAS_GROUPS`](crate::versions::HAS_GROUPS) on.
    Grouped(Vec<Group>, Bytes),
}

impl Frame {
    /// The state of the array that it has, if it has one.
    fn state(&self) -> Option<&ArrayState> {
        match self {
            Frame::Request(request) => request.state(),
            Frame::Reply(reply) => reply.state(),
            Frame::Report(report) => Some(&report.state),
            Frame::State(state) => Some(state),
            Frame::Attended(attended) => Some(&attended.state),
            _ => None,
        }
    }

    fn state_mut(&mut self) -> Option<&mut ArrayState> {
        match self {
            Frame::Request(request) => request.state_mut(),
            Frame::Reply(reply) => reply.state_mut(),
            Frame::Report(report) => Some(&mut report.state),
            Frame::State(state) => Some(state),
            Frame::Attended(attended) => Some(&mut attended.state),
            _ => None,
        }
    }

    /// The frame by which its state goes with its groups; `None` if there are none.
    pub fn with_groups(&self) -> Option<Frame> {
        let state = self.state().filter(|state| !state.added.is_empty())?;
        // Encoding into memory fails only for lengths that are not known, and a frame has none.
        let frame = postcard::to_allocvec(self).unwrap_or_default();
        Some(Frame::Grouped(state.added.clone(), frame.into()))
    }

    fn of_groups(groups: Vec<Group>, frame: &[u8]) -> Result<Frame, &'static str> {
        let frame = postcard::from_bytes::<Frame>(frame).map_err(|_| "it cannot be read")?;
        if matches!(frame, Frame::Grouped(..)) {
            return Err("groups of devices are there twice");
        }
        let mut frame = frame.received()?;
        let state = frame.state_mut().ok_or("groups of devices are there without a state")?;
        state.added = groups;
        Ok(frame)
    }

    /// The last word of a device to a life that is fenced. It answers no request.
    pub fn fenced(life: Life) -> Frame {
        let call = Call { op: OpId { life, seq: 0 }, sibling: 0, step: 0 };
        Frame::Reply(Reply { call, waited: false, boot: 0, answer: Answer::Fenced })
    }

    /// Returns true if it is a message between devices.
    pub fn is_between_devices(&self) -> bool {
        use Frame::{AskTime, Settled, State, Time, Vote};
        matches!(self, Vote(_) | AskTime { .. } | Time { .. } | Settled(_) | State(_))
    }
}

impl Framed for Frame {
    const MAGIC: [u8; 8] = *b"LOCKIFYA";
    const SPOKEN: Versions = crate::versions::SPOKEN;
    const SPEAKER: &'static str = "process of an array";
    const SUBJECT: &'static str = "arrays";
    const MAX_GREETING: usize = 4096;
    /// A part of an operation on one device, with linkage records.
    const MAX_FRAME: usize = 80 << 20;
    const READ: usize = 256 * 1024;

    fn refusal(why: String) -> Frame {
        Frame::Refused(why)
    }

    fn refused(&self) -> Option<&str> {
        if let Frame::Refused(why) = self { Some(why) } else { None }
    }

    fn received(self) -> Result<Frame, &'static str> {
        Ok(match self {
            Frame::Refused(text) => Frame::Refused(printable(&text)),
            Frame::Later(text) => Frame::Later(printable(&text)),
            Frame::Recovered(Err(text)) => Frame::Recovered(Err(printable(&text))),
            Frame::Grown(Err(text)) => Frame::Grown(Err(printable(&text))),
            Frame::Software(software) => {
                Frame::Software(Software { release: printable(&software.release), ..software })
            }
            Frame::Grouped(groups, frame) => Frame::of_groups(groups, &frame)?,
            frame => frame,
        })
    }
}

#[cfg(test)]
mod tests;
