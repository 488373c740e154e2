//! The server: its protocol, TLS, misbehaving clients, and existing clients.

mod clients;
mod decoder;
mod misbehaviour;
mod protocol;
mod tls;
