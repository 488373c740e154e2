//! Identities in a cluster: keys and certificates, made, read and exchanged while nodes run.
//!
//! Nodes talk TLS 1.3 and each shows a certificate ([`Credentials`]). The certificate's only name gives the node and
//! the cluster ([`node_name`]), and an authority that all nodes trust has signed it: so no node can pass for another
//! one. There are two ways to have an authority:
//!
//! - [`CaFolder`]: an authority with a key of its own, kept where nodes are set up. Each node gets a certificate;
//!   whoever steals one node's key can be that node and no other.
//! - [`SharedKey`]: a secret that every node has. From it each node derives the same authority and signs a
//!   certificate for itself, anew at each start. Simpler, and weaker: whoever has the key can be any node.
//!
//! A [`Keyring`] holds the credentials in use; they can be replaced while a node runs.
//!
//! Programs tell each other values as [frames](frame), over a [`Socket`] or another connection with an [`Inbox`]. Processes
//! do it over a [`Line`], which knows how they begin ([`speech`]) but not what they talk about. Other threads
//! of a process put letters to its event loop into a [`Mailbox`]. An [`Address`] says where a process is reached. A file that only one of them may use is a [`LockedFile`].
#![forbid(unsafe_code)]

mod address;
mod anchors;
mod authority;
mod credentials;
mod error;
mod explain;
mod files;
mod folder;
pub mod frame;
mod identity;
mod inbox;
mod keyring;
mod line;
mod locked;
mod mailbox;
mod name;
mod secured;
mod seed;
mod shared_key;
mod socket;
pub mod speech;
mod text;
mod versions;

pub use address::Address;
pub use authority::{Authority, Lifetime};
pub use credentials::{Credentials, proven_node, proves};
pub use error::TrustError;
pub use explain::explain;
pub use folder::{CA, CA_KEY, CaFolder, IDENTITY, NodeFiles};
pub use identity::Identity;
pub use inbox::Inbox;
pub use keyring::{Keyring, PLAIN_TEXT, Security, Source};
pub use line::{End, Line};
pub use locked::LockedFile;
pub use mailbox::Mailbox;
pub use name::{LONGEST_CLUSTER, node_name};
pub use rustls;
pub use secured::Reading;
pub use shared_key::{SharedKey, generate_key_file};
pub use socket::Socket;
pub use text::{cut, printable, printable_json, printable_lines, printable_start};
pub use versions::Versions;
