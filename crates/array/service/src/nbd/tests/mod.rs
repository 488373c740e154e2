//! The server: its protocol, misbehaving clients, and existing clients.

mod clients;
mod decoder;
mod misbehaviour;
mod protocol;
