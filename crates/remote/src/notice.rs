//! What a server publishes in its segment: where the table is, and what all of its clients have to agree on.

use lockify_fabric::shm::Segment;
use lockify_onesided::{Key, Options, Peer, Protocol, Region, Table};
use serde::{Deserialize, Serialize};

use crate::client::ConnectError;

/// Grows when a field's meaning changes, or clients have to know a new one.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
pub(crate) struct Notice {
    format: u32,
    home: u16,
    key: u32,
    bytes: u64,
    locks: u64,
    slots: u64,
    protocol: String,
    lease_ns: Option<u64>,
}

impl Notice {
    pub fn new(region: Region, locks: u64, slots: u64, options: &Options) -> Notice {
        Notice {
            format: FORMAT,
            home: region.home.0,
            key: region.key.0,
            bytes: region.len,
            locks,
            slots,
            protocol: options.protocol.name().to_owned(),
            lease_ns: options.lease,
        }
    }

    /// Reads it; whoever can write to the segment can write anything there.
    pub fn read(segment: &Segment) -> Result<Notice, ConnectError> {
        let unusable = |why: String| ConnectError::Notice { path: segment.path().to_owned(), why };
        let bytes = segment.notice()?;
        if bytes.is_empty() {
            return Err(unusable("it is not complete yet".into()));
        }
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } =
            serde_json::from_slice(&bytes).map_err(|e| unusable(e.to_string()))?;
        if format != FORMAT {
            return Err(unusable(format!("it has format {format}, this program knows {FORMAT}")));
        }
        serde_json::from_slice(&bytes).map_err(|e| unusable(e.to_string()))
    }

    pub fn home(&self) -> Peer {
        Peer(self.home)
    }

    pub fn table(&self) -> Result<Table, ConnectError> {
        let region = Region { home: self.home(), key: Key(self.key), len: self.bytes };
        Ok(Table::new(region, self.locks, self.slots)?)
    }

    pub fn options(&self) -> Result<Options, ConnectError> {
        let protocol: Protocol = self.protocol.parse()?;
        let options = Options::new(protocol);
        Ok(self.lease_ns.map_or(options, |lease| options.with_lease(lease)))
    }
}
