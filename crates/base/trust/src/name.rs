//! A node's name in its certificate.

use rustls::pki_types::ServerName;

use crate::error::TrustError;

/// The longest name of a cluster, bytes.
pub const LONGEST_CLUSTER: usize = 64;

/// Bytes of a cluster's name in one label: two hexadecimal digits each, at most 63 (RFC 1035, 2.3.4).
const PER_LABEL: usize = 31;

/// The name that the certificate of this node of this cluster has: a DNS name, because that is what
/// TLS libraries compare, in a domain that is for private use and never resolved. The cluster's name
/// is in hexadecimal: any bytes are allowed in it, and upper and lower case differ.
///
/// # Errors
/// [`TrustError::Asked`] if the cluster's name has not 1 to [`LONGEST_CLUSTER`] bytes.
pub fn node_name(cluster: &str, node: u32) -> Result<String, TrustError> {
    if cluster.is_empty() || cluster.len() > LONGEST_CLUSTER {
        let text = format!("a cluster's name has 1 to 64 bytes, not {}", cluster.len());
        return Err(TrustError::Asked(text));
    }
    let hex = |part: &[u8]| part.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let labels: Vec<String> = cluster.as_bytes().chunks(PER_LABEL).map(hex).collect();
    Ok(format!("node-{node}.{}.lockify.internal", labels.join(".")))
}

/// The node that a name would be of, in any cluster.
pub(crate) fn node_in(name: &str) -> Option<u32> {
    name.strip_prefix("node-")?.split_once('.')?.0.parse().ok()
}

/// [`node_name`] as the TLS library wants it.
pub(crate) fn server_name(cluster: &str, node: u32) -> Result<ServerName<'static>, TrustError> {
    let name = node_name(cluster, node)?;
    ServerName::try_from(name).map_err(|e| TrustError::crypto("a node's name")(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_of_every_cluster_has_a_name_of_its_own() {
        let long = "x".repeat(LONGEST_CLUSTER);
        let other = format!("{}y", "x".repeat(LONGEST_CLUSTER - 1));
        // "a." + "b" and "a" + ".b", and names that differ in case only, must not meet.
        let clusters = ["a", "A", "ab", "a.b", "ä\n", "*", &long, &other];
        let mut names = std::collections::BTreeSet::new();
        for cluster in clusters {
            for node in [0, 1, 11, u32::MAX] {
                let name = server_name(cluster, node).unwrap().to_str().into_owned();
                assert!(name.len() <= 253, "{name}");
                assert!(names.insert(name), "{cluster} {node}");
            }
        }
    }

    #[test]
    fn names_of_impossible_length_are_refused() {
        assert!(node_name("", 1).is_err());
        assert!(node_name(&"x".repeat(LONGEST_CLUSTER + 1), 1).is_err());
    }
}
