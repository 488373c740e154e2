//! Corosync for one process: a process group (cpg), the cluster's quorum and its list of nodes
//! (cmap), as one [`Session`] with one list of [`Event`]s. Knows nothing of locks.
//!
//! The libraries (`libcpg.so.4`, `libquorum.so.5`, `libcmap.so.4`: those of corosync 3) are loaded
//! when a session is opened, so that programs build and run where corosync is not installed. The
//! published bindings are linked to five libraries instead, and keep their callbacks behind a
//! global lock.
//!
//! **Every function here may block** for as long as the corosync daemon does not answer (its
//! libraries wait without limit): call them on a thread of their own.

mod api;
mod error;
mod nodes;
mod session;

pub use error::Error;
pub use nodes::{LinkAddress, Node, Nodes};
pub use session::{Event, MAX_MESSAGE, Process, Reason, RingId, Session};
