//! The server: its protocol, clients that misbehave, and the clients that there are.

mod clients;
mod decoder;
mod misbehaviour;
mod protocol;
