//! How processes of an array talk: frames over TCP, perhaps TLS, in one event loop per process.

mod frame;
mod net;
mod report;

pub(crate) use frame::{Frame, Role, Welcome, Whom};
pub(crate) use net::{Event, Me, Net, Target, Why};
pub use report::{Peer, Report, Software};
