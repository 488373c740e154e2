//! A node's proof of identity, and the authorities that it trusts.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier as _;
use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::{CryptoProvider, ring::default_provider};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use x509_parser::extensions::GeneralName;

use crate::anchors::{Anchors, Validity};
use crate::error::TrustError;
use crate::explain::explain;
use crate::name::{node_in, server_name};

/// Keeps this protocol apart from others that might be given the same certificates.
const PROTOCOL: &[u8] = b"lockify";

/// The most certificates that a bundle may have.
const MOST_CERTIFICATES: usize = 64;

/// A node's certificate and key, and the authorities that it trusts, checked to fit together.
#[derive(Clone)]
pub struct Credentials {
    cluster: String,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    end: Validity,
    anchors: Arc<Anchors>,
    warn_days: u32,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("until", &self.end.until).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads a node's `identity` (its certificate, those between it and the authority if there are
    /// any, and its key, PEM) and the `authorities` that it trusts (certificates, PEM), and checks
    /// that they are those of this node, and valid now.
    ///
    /// # Errors
    /// The error in them, and its remedy.
    pub fn new(
        cluster: &str,
        node: u32,
        identity: &str,
        authorities: &str,
    ) -> Result<Credentials, String> {
        let provider = Arc::new(default_provider());
        let anchors = Arc::new(Anchors::new(certificates(authorities)?, &provider)?);
        let chain = certificates(identity)?;
        let Some(own) = chain.first().cloned() else {
            return Err("no certificate in it: `lockify cluster add-node` makes one".into());
        };
        let key = || {
            PrivateKeyDer::from_pem_slice(identity.as_bytes()).map_err(|e| {
                format!(
                    "no private key in it that can be read ({e}): it must follow the certificate"
                )
            })
        };
        check(cluster, node, &chain, &anchors)?;
        let end = Validity::of(&own)?.earlier(anchors.end_for(&chain));
        let client = client_config(&provider, anchors.clone(), chain.clone(), key()?);
        let server = server_config(&provider, anchors.clone(), chain, key()?);
        let unusable = |e: rustls::Error| format!("certificate and key cannot be used: {e}");
        let (client, server) = (client.map_err(unusable)?, server.map_err(unusable)?);
        let (client, server) = (Arc::new(client), Arc::new(server));
        let cluster = cluster.to_owned();
        Ok(Credentials { cluster, client, server, end, anchors, warn_days: 0 })
    }

    /// The same, with a warning from so many days before they end.
    pub fn warn_from(mut self, days: u32) -> Credentials {
        self.warn_days = days;
        self
    }

    /// From how many days before it ends a certificate is warned of.
    pub fn warn_days(&self) -> u32 {
        self.warn_days
    }

    /// When the certificate ends that another node has shown, or the authority that has signed it: seconds since 1970.
    pub fn end_of(&self, shown: &[CertificateDer<'_>]) -> Option<i64> {
        let own = Validity::of(shown.first()?).ok()?;
        Some(own.earlier(self.anchors.end_for(shown)).to)
    }

    /// When other nodes begin to refuse this one, seconds since 1970: its certificate ends, or the authority that has
    /// signed it.
    pub fn expires(&self) -> i64 {
        self.end.to
    }

    /// The same, for people.
    pub fn until(&self) -> &str {
        &self.end.until
    }

    /// The cluster whose nodes they are for.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Begins a connection to this node: another one that answers is refused.
    ///
    /// # Errors
    /// The library refuses; it should not.
    pub fn dial(&self, node: u32) -> Result<Connection, TrustError> {
        let name = server_name(&self.cluster, node)?;
        let made = ClientConnection::new(self.client.clone(), name);
        made.map(Connection::from).map_err(|e| TrustError::crypto("cannot begin TLS")(&e))
    }

    /// Answers a connection: one without a certificate of the cluster is refused. Which node it is
    /// must be asked then ([`proves`]).
    ///
    /// # Errors
    /// The library refuses; it should not.
    pub fn accept(&self) -> Result<Connection, TrustError> {
        let made = ServerConnection::new(self.server.clone());
        made.map(Connection::from).map_err(|e| TrustError::crypto("cannot begin TLS")(&e))
    }
}

/// Returns true if the other side of an established connection has proved to be this node of this
/// cluster.
pub fn proves(connection: &Connection, cluster: &str, node: u32) -> bool {
    if connection.is_handshaking() {
        return false;
    }
    let own = connection.peer_certificates().and_then(<[_]>::first);
    let parsed = own.and_then(|own| ParsedCertificate::try_from(own).ok());
    let (Some(parsed), Ok(name)) = (parsed, server_name(cluster, node)) else { return false };
    verify_server_name(&parsed, &name).is_ok()
}

/// The node of this cluster that the other side of an established connection has proved to be.
pub fn proven_node(connection: &Connection, cluster: &str) -> Option<u32> {
    let own = connection.peer_certificates()?.first()?;
    let (_, parsed) = x509_parser::parse_x509_certificate(own).ok()?;
    let names = parsed.subject_alternative_name().ok()??.value;
    let mut nodes = names.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => node_in(name),
        _ => None,
    });
    // The library has the last word on names.
    nodes.find(|node| proves(connection, cluster, *node))
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).take(MOST_CERTIFICATES + 1).collect();
    let all =
        all.map_err(|e| format!("a certificate cannot be read ({e}): is it PEM, and whole?"))?;
    if all.len() > MOST_CERTIFICATES {
        return Err(format!(
            "more than {MOST_CERTIFICATES} certificates: remove those of the past"
        ));
    }
    Ok(all)
}

/// Other nodes will look at this node's certificate as this does: better to hear it at the start.
fn check(
    cluster: &str,
    node: u32,
    chain: &[CertificateDer<'_>],
    anchors: &Anchors,
) -> Result<(), String> {
    let name = server_name(cluster, node).map_err(|e| e.to_string())?;
    let Some((own, between)) = chain.split_first() else { return Ok(()) };
    let valid = anchors.verify_server_cert(own, between, &name, &[], UnixTime::now());
    let wrong = |e| format!("node {node} of cluster {cluster:?}: {}", explain(&e));
    valid.map(drop).map_err(wrong)
}

fn client_config(
    provider: &Arc<CryptoProvider>,
    anchors: Arc<Anchors>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(anchors)
        .with_client_auth_cert(chain, key)?;
    // A resumed session would not show a certificate again: keys that have been replaced, and
    // authorities that are trusted no more, would go on.
    config.resumption = Resumption::disabled();
    // The name would be sent in the clear, and nobody chooses by it.
    config.enable_sni = false;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(config)
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    anchors: Arc<Anchors>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(anchors)
        .with_single_cert(chain, key)?;
    // As for the client. Without tickets there is no early data either, which could be replayed.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(config)
}
