//! A server's notice: the place of the table, and the settings on which all of its clients have to
//! agree.

use lockify_onesided::{Key, Options, Peer, Protocol, Region, Table, TableError, UnknownProtocol};
use serde::{Deserialize, Serialize};

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

    pub fn encode(&self) -> Vec<u8> {
        // Numbers and a string have a form in JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads it, or says why it cannot be used; the table's server can write anything there.
    pub fn decode(bytes: &[u8]) -> Result<Notice, String> {
        if bytes.is_empty() {
            return Err("it is not complete yet".into());
        }
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if format != FORMAT {
            return Err(format!("it has format {format}, this program knows {FORMAT}"));
        }
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }

    /// Returns true if another table has other numbers or rules.
    pub fn differs(&self, other: &Notice) -> bool {
        let rules = |n: &Notice| (n.locks, n.slots, n.protocol.clone(), n.lease_ns);
        rules(self) != rules(other)
    }

    /// The table in a few words.
    pub fn words(&self) -> String {
        let lease = self.lease_ns.map_or_else(
            || "without leases".into(),
            |lease| format!("with leases of {:?}", std::time::Duration::from_nanos(lease)),
        );
        format!("{} locks by {} {lease} for {} clients", self.locks, self.protocol, self.clients())
    }

    pub fn home(&self) -> Peer {
        Peer(self.home)
    }

    /// Clients that there can be at a time, or a few more.
    pub fn clients(&self) -> u64 {
        self.slots / 2
    }

    pub fn table(&self) -> Result<Table, TableError> {
        let region = Region { home: self.home(), key: Key(self.key), len: self.bytes };
        Table::new(region, self.locks, self.slots)
    }

    pub fn options(&self) -> Result<Options, UnknownProtocol> {
        let protocol: Protocol = self.protocol.parse()?;
        let options = Options::new(protocol);
        Ok(self.lease_ns.map_or(options, |lease| options.with_lease(lease)))
    }
}
