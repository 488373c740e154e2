//! Tables of remote locks between real processes.

mod rendezvous;
mod stress;
