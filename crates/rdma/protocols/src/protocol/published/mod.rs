//! Protocols that are here only to be compared with. DSLR and ShiftLock, which are published as well, share the files of the
//! protocols that follow from them: [`ticket`](super::ticket) and [`shift`](super::shift).

pub(crate) mod cosed;
pub(crate) mod drtm;
pub(crate) mod rma;
pub(crate) mod server;
pub(crate) mod spin;
pub(crate) mod tail;
