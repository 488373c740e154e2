//! The messages between an array's processes.

use lockify_array::message::{Answer, Call, Reply, Request};
use lockify_array::{
    ArrayState, Attended, CopyMessage, DeviceId, Life, OpId, ServerId, ServerReply, ServerRequest,
    Time,
};
use lockify_membership::Vote;
use lockify_trust::Versions;
use lockify_trust::speech::{Framed, printable};
use serde::{Deserialize, Serialize};

use super::report::Report;
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
    /// To a host, or of a lock server to a device: the array's state, as the sender knows it. A host that waits only for an excluded device learns of it
    /// by this.
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
    /// Of a lock server, to a device: it is there, and serves in this term, if it does.
    Attend(Option<u64>),
    /// The answer.
    Attended(Attended),
    /// Between lock servers.
    Copy(CopyMessage),
}

impl Frame {
    /// The last word of a device to a life that is fenced. It answers no request.
    pub fn fenced(life: Life) -> Frame {
        let call = Call { op: OpId { life, seq: 0 }, sibling: 0, step: 0 };
        Frame::Reply(Reply { call, waited: false, boot: 0, answer: Answer::Fenced })
    }

    /// Returns true if it is a message between devices.
    pub fn is_between_devices(&self) -> bool {
        use Frame::{AskTime, Settled, Time, Vote};
        matches!(self, Vote(_) | AskTime { .. } | Time { .. } | Settled(_))
    }
}

impl Framed for Frame {
    const MAGIC: [u8; 8] = *b"LOCKIFYA";
    const SPOKEN: Versions = Versions::only(11);
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
            frame => frame,
        })
    }
}

#[cfg(test)]
mod tests {
    use lockify_array::message::{Action, Past};
    use lockify_array::{
        Agree, Agreed, Ballot, Change, Extent, Held, HostId, LockChange, LockMode, LockRange,
        PartId, Stamp, Term,
    };
    use lockify_trust::speech::{MAX_TEXT, SpeechError, decode, decode_head, encode, encode_head};

    use super::*;

    fn frames() -> Vec<Frame> {
        let life = Life { host: HostId(3), incarnation: 1 << 60 };
        let hello = |role| {
            let (to, array) = (Whom::Device(DeviceId(2)), ArrayId([4; 16]));
            Frame::Hello(Hello { cluster: "c".into(), node: 7, to, array, digest: 9, role })
        };
        let others = vec![
            Frame::Refused("no".into()),
            hello(Role::Host(life)),
            hello(Role::Device { id: DeviceId(1), life: 5, in_service: true }),
            hello(Role::Watcher),
            hello(Role::Server(ServerId(1))),
            Frame::Welcome(Welcome { life: 6, in_service: false }),
            Frame::Vote(Vote::Goodbye),
            Frame::Query,
            Frame::AskTime { asked: 7 },
            Frame::Time { asked: 7, time: 1 << 60 },
            Frame::Settled(true),
            Frame::Recover,
            Frame::Recovered(Ok(())),
            Frame::Recovered(Err("not now".into())),
        ];
        let all = others.into_iter().chain(of_state(life)).chain(of_locks(life));
        all.chain(of_lock_servers()).collect()
    }

    /// The messages that agree on the array's state and report it.
    fn of_state(life: Life) -> impl Iterator<Item = Frame> {
        let state = ArrayState::new(3);
        let state = state
            .changed(Change::LetIn(
                DeviceId(1),
                Term { number: 1 << 33, follows: 0, key: u64::MAX },
            ))
            .unwrap()
            .unwrap();
        let state = state.changed(state.without(DeviceId(2))).unwrap().unwrap();
        let call = Call { op: OpId { life, seq: 300 }, sibling: 1, step: 2 };
        let ballot = Ballot { round: 2, by: Some(life), change: 9 };
        let asks = [
            Action::Install(Box::new(state.clone())),
            Action::Agree(Agree::Promise { epoch: state.epoch, ballot }),
            Action::Agree(Agree::Accept { ballot, state: Box::new(state.clone()) }),
        ];
        let agreed = |agreed| Answer::Agreed(Box::new(agreed));
        let answers = [
            Answer::Stale(Box::new(state.clone())),
            Answer::Behind(state.since),
            agreed(Agreed::Promised { accepted: Some((ballot, state.clone())), unsure: true }),
            agreed(Agreed::Accepted),
            agreed(Agreed::Outbid { ballot }),
            agreed(Agreed::Chosen(state.clone())),
            agreed(Agreed::Missing(state.epoch)),
        ];
        let (stamp, epoch) = (Stamp { time: 1 << 60, host: 3 }, state.since);
        let ask = move |action| Frame::Request(Request { call, stamp, epoch, action });
        let answer =
            move |answer| Frame::Reply(Reply { call, waited: true, boot: u64::MAX, answer });
        let news = [Frame::State(state)];
        asks.into_iter().map(ask).chain(answers.into_iter().map(answer)).chain(news)
    }

    /// The messages of lock servers to devices, and to each other.
    fn of_lock_servers() -> [Frame; 6] {
        let serve = LockChange::Serve { after: 0, by: ServerId(0), log: 0, holder: u64::MAX };
        let state = ArrayState::new(3).changed(Change::Locks(serve)).unwrap().unwrap();
        let (term, number, record) = (1, 1 << 60, b"locks"[..].into());
        [
            Frame::Attend(None),
            Frame::Attend(Some(1 << 60)),
            Frame::Attended(Attended { state, silent: 1 << 60 }),
            Frame::Copy(CopyMessage::Whole { term, number, key: u64::MAX, record }),
            Frame::Copy(CopyMessage::More { term, number, record: b""[..].into() }),
            Frame::Copy(CopyMessage::Copied { term, number }),
        ]
    }

    /// All that hosts and the lock server say to each other.
    fn of_locks(life: Life) -> impl Iterator<Item = Frame> {
        let op = OpId { life, seq: 300 };
        let part = PartId { op, index: 2 };
        let extent = Extent { start: 1 << 40, count: 5 };
        let range = LockRange { device: DeviceId(9), extent, mode: LockMode::Exclusive };
        let lock = |past| ServerRequest::Lock { op, ranges: vec![range; 3], past, repair: true };
        let asks = [
            ServerRequest::Register {
                incarnation: 7,
                held: vec![Held { part, mode: LockMode::Shared }],
                newest: 1 << 60,
            },
            lock(Past::Nobody),
            lock(Past::Tries(vec![op])),
            lock(Past::Life(life)),
            ServerRequest::Unlock { op, newest: 1 << 60 },
            ServerRequest::Relinquish { free: vec![part], shared: vec![part, part], newest: 0 },
            ServerRequest::Yield { parts: vec![part, part] },
            ServerRequest::Renew,
            ServerRequest::Fence { life },
            ServerRequest::Clear { life },
        ];
        let answers = [
            ServerReply::Welcome { incarnation: 7, lease: 1 << 32 },
            ServerReply::Granted { op, waited: true, newest: 1 << 60 },
            ServerReply::Unlocked { op },
            ServerReply::Callback { parts: vec![part], shared: true },
            ServerReply::Renewed,
            ServerReply::Fenced { life, ranges: vec![range] },
            ServerReply::Cleared { life },
            ServerReply::Refused { reason: "why".into() },
        ];
        asks.into_iter().map(Frame::Ask).chain(answers.into_iter().map(Frame::Answer))
    }

    #[test]
    fn frames_come_back_as_they_were_and_never_too_early() {
        for frame in frames() {
            let mut bytes = Vec::new();
            encode(&mut bytes, &frame);
            assert_eq!(decode(&bytes, false), Ok(Some((frame, bytes.len()))));
            (0..bytes.len())
                .for_each(|cut| assert_eq!(decode::<Frame>(&bytes[..cut], false), Ok(None)));
        }
    }

    /// Every version understands these bytes.
    #[test]
    fn heads_and_refusals_keep_their_bytes() {
        let mut all = Vec::new();
        encode_head::<Frame>(&mut all, Frame::SPOKEN.newest);
        encode(&mut all, &Frame::Refused("no".into()));
        assert_eq!(all, b"LOCKIFYA\x0b\0\x04\0\0\0\0\x02no");
        assert_eq!(decode_head::<Frame>(&all), Ok(Some(Frame::SPOKEN.newest)));
        assert_eq!(decode_head::<Frame>(b"\x16\x03\x01"), Err(SpeechError::Tls));
        let other = decode_head::<Frame>(b"LOCKIFYR\x01\0").unwrap_err();
        assert_eq!(other.to_string(), "this is no process of an array: is the address right?");
    }

    #[test]
    fn strangers_are_not_given_memory() {
        let length = (Frame::MAX_GREETING as u32 + 1).to_le_bytes();
        assert!(decode::<Frame>(&length, false).is_err());
        assert_eq!(decode::<Frame>(&length, true), Ok(None));
        assert!(decode::<Frame>(&(Frame::MAX_FRAME as u32 + 1).to_le_bytes(), true).is_err());
        let long = Frame::Refused("\u{7}ä".repeat(9999));
        let mut bytes = Vec::new();
        encode(&mut bytes, &long);
        let Ok(Some((Frame::Refused(text), _))) = decode(&bytes, false) else { panic!() };
        assert!(text.starts_with("\\u{7}ä\\u{7}ä") && text.len() <= MAX_TEXT);
    }

    /// Every single wrong byte, and every cut.
    #[test]
    fn noise_is_refused_without_a_panic() {
        for frame in frames() {
            let mut bytes = Vec::new();
            encode(&mut bytes, &frame);
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut noise = bytes.clone();
                    noise[at] ^= 1 << bit;
                    if let Ok(Some((_, used))) = decode::<Frame>(&noise, false) {
                        assert!(used <= noise.len());
                    }
                }
            }
        }
    }
}
