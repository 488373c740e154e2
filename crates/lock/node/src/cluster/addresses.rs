//! Where a node of corosync's list can be reached: the addresses of all its links.
//!
//! Names are looked up on this machine, and Debian's installer writes a machine's own name into
//! `/etc/hosts` with an address of the loopback interface. A daemon that listened there would be
//! alone, and its peers would dial themselves: so such a name is refused.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use lockify_corosync::{LinkAddress, Node};

/// The first address of a node, and its others, in the order of its links.
///
/// # Errors
/// A name has no address, or only addresses of the loopback interface.
pub(super) fn of(
    node: &Node,
    port: u16,
    look_up: impl Fn(&str) -> io::Result<Vec<IpAddr>>,
) -> Result<(SocketAddr, Vec<SocketAddr>), String> {
    let mut all = Vec::new();
    for link in &node.links {
        for ip in of_link(node, link, &look_up)? {
            let address = SocketAddr::new(ip, port);
            if !all.contains(&address) {
                all.push(address);
            }
        }
    }
    if all.is_empty() {
        return Err(format!("node {} in corosync.conf has no address: give it one", node.id));
    }
    let first = all.remove(0);
    Ok((first, all))
}

fn of_link(
    node: &Node,
    link: &LinkAddress,
    look_up: impl Fn(&str) -> io::Result<Vec<IpAddr>>,
) -> Result<Vec<IpAddr>, String> {
    // An address that is written down is the same everywhere, and meant.
    if let Ok(ip) = link.address.parse() {
        return Ok(vec![ip]);
    }
    let key = format!("ring{}_addr {} of node {}", link.link, link.address, node.id);
    let advice = "write it as an IP address, or into /etc/hosts with the address that other \
                  machines reach";
    let found = match look_up(&link.address) {
        Ok(found) if !found.is_empty() => found,
        Ok(_) => return Err(format!("{key} in corosync.conf has no address: {advice}")),
        Err(e) => return Err(format!("{key} in corosync.conf has no address ({e}): {advice}")),
    };
    let (near, far): (Vec<IpAddr>, Vec<IpAddr>) =
        found.into_iter().partition(|ip| ip.to_canonical().is_loopback());
    match near.first() {
        Some(near) if far.is_empty() => Err(format!(
            "{key} in corosync.conf is {near} on this machine (its /etc/hosts?), which no other \
             machine reaches: {advice}"
        )),
        _ => Ok(far),
    }
}

/// This machine's addresses of a name.
pub(super) fn look_up(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|a| a.ip()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(links: &[(u8, &str)]) -> Node {
        let links = links.iter().map(|(link, a)| LinkAddress { link: *link, address: (*a).into() });
        Node { id: 3, name: None, links: links.collect(), votes: 1 }
    }

    fn hosts(name: &str) -> io::Result<Vec<IpAddr>> {
        let addresses: &[&str] = match name {
            "n3" => &["192.0.2.3"],
            "n3-storage" => &["2001:db8::3", "192.0.2.3", "198.51.100.3"],
            "debian" => &["127.0.1.1"],
            "mapped" => &["::ffff:127.0.1.1", "::1"],
            "both" => &["127.0.1.1", "192.0.2.3"],
            "nothing" => &[],
            _ => return Err(io::Error::other("Name or service not known")),
        };
        Ok(addresses.iter().map(|a| a.parse().unwrap()).collect())
    }

    fn found(links: &[(u8, &str)]) -> Result<Vec<String>, String> {
        let (first, others) = of(&node(links), 7430, hosts)?;
        Ok(std::iter::once(first).chain(others).map(|a| a.to_string()).collect())
    }

    #[test]
    fn the_addresses_of_all_links_count_in_their_order_and_once() {
        assert_eq!(found(&[(0, "192.0.2.3")]).unwrap(), ["192.0.2.3:7430"]);
        assert_eq!(found(&[(1, "198.51.100.3")]).unwrap(), ["198.51.100.3:7430"]);
        let both = found(&[(0, "n3"), (1, "n3-storage")]).unwrap();
        assert_eq!(both, ["192.0.2.3:7430", "[2001:db8::3]:7430", "198.51.100.3:7430"]);
    }

    #[test]
    fn a_name_that_is_loopback_here_is_refused_with_the_reason() {
        for (name, address) in [("debian", "127.0.1.1"), ("mapped", "::ffff:127.0.1.1")] {
            let refused = found(&[(0, "192.0.2.3"), (1, name)]).unwrap_err();
            assert!(refused.starts_with(&format!("ring1_addr {name} of node 3 ")), "{refused}");
            assert!(refused.contains(&format!("is {address} on this machine")), "{refused}");
            assert!(refused.contains("/etc/hosts"), "{refused}");
        }
        assert_eq!(found(&[(0, "both")]).unwrap(), ["192.0.2.3:7430"]);
        // Clusters on one machine, for trials, write their addresses down.
        assert_eq!(found(&[(0, "127.0.0.1")]).unwrap(), ["127.0.0.1:7430"]);
    }

    #[test]
    fn a_name_without_an_address_is_refused() {
        for name in ["nothing", "unknown"] {
            let refused = found(&[(0, name)]).unwrap_err();
            assert!(refused.contains(&format!("ring0_addr {name} of node 3 ")), "{refused}");
            assert!(refused.contains("has no address"), "{refused}");
        }
        assert!(found(&[]).unwrap_err().contains("node 3"));
    }
}
