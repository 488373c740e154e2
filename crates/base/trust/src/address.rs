//! Where a process is reached: `HOST:PORT`.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An address of a process: an IP address and a port, or a name and a port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Address {
    host: String,
    port: u16,
    socket: Option<SocketAddr>,
}

impl Address {
    /// The IP address and port, if the host is one; a name is looked up at each connection.
    pub fn socket(&self) -> Option<SocketAddr> {
        self.socket
    }

    /// The host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; of a node's shards, the first one's.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Only this machine reaches it. A name may become another machine's.
    pub fn is_loopback(&self) -> bool {
        self.socket.is_some_and(|a| a.ip().to_canonical().is_loopback())
    }

    /// Where its process listens: a name's machine at all of its addresses.
    pub fn listens(&self) -> SocketAddr {
        self.socket.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, self.port).into())
    }

    /// Looks the host up. The system may take long to answer.
    ///
    /// # Errors
    /// The host, and the system's reason.
    pub fn look_up(&self) -> Result<Vec<SocketAddr>, String> {
        let all = (self.host.as_str(), self.port).to_socket_addrs();
        all.map(Iterator::collect).map_err(|e| format!("cannot look up {}: {e}", self.host))
    }

    /// It is an IP address that nobody can connect to.
    pub fn is_unspecified(&self) -> bool {
        self.socket.is_some_and(|a| a.ip().is_unspecified())
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address { host: address.ip().to_string(), port: address.port(), socket: Some(address) }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.socket {
            Some(address) => address.fmt(f),
            None => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let wrong = || {
            format!(
                "{text:?} is no address: write HOST:PORT, as \"192.0.2.1:7430\", \
                 \"[2001:db8::1]:7430\" or \"node1.example:7430\""
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || c == '_';
        // Digits and dots alone are a mistyped IP address, not a name.
        let named = host.chars().any(|c| c.is_ascii_alphabetic());
        if host.is_empty() || host.len() > 253 || !host.chars().all(plain) || !named {
            return Err(wrong());
        }
        Ok(Address { host: host.to_owned(), port, socket: None })
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Address, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ip_addresses_or_names_with_a_port() {
        let place = |text: &str| text.parse::<Address>();
        assert!(place("192.0.2.1:7430").unwrap().socket().is_some());
        assert!(place("[2001:db8::1]:7430").unwrap().socket().is_some());
        let named = place("node1.example:7430").unwrap();
        assert_eq!((named.host(), named.port(), named.socket()), ("node1.example", 7430, None));
        assert_eq!(named.to_string(), "node1.example:7430");
        assert_eq!(named.listens().to_string(), "0.0.0.0:7430");
        let here = place("localhost:7430").unwrap().look_up().unwrap();
        assert!(here.iter().all(|a| a.ip().is_loopback() && a.port() == 7430), "{here:?}");
        let nowhere = place("nowhere.invalid:7430").unwrap().look_up().unwrap_err();
        assert!(nowhere.contains("nowhere.invalid"), "{nowhere}");
        for wrong in
            ["", "node1", "node1:", "node1:70000", "300.1.1.1:7", "a b:1", ":1", "2001:db8::1:7430"]
        {
            let e = place(wrong).unwrap_err();
            assert!(e.contains("HOST:PORT") && e.contains(&format!("{wrong:?}")), "{e}");
        }
    }
}
