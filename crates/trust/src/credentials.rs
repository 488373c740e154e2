//! What a node shows to others, and whom it believes.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring::default_provider};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};
use x509_parser::parse_x509_certificate;

use crate::error::TrustError;
use crate::explain::explain;
use crate::name::server_name;

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
    expires: i64,
    until: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("until", &self.until).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads a node's `identity` (its certificate, those between it and the authority if there are
    /// any, and its key, PEM) and the `authorities` that it trusts (certificates, PEM), and checks
    /// that they are those of this node, and valid now.
    ///
    /// # Errors
    /// What is wrong with them, and what to do.
    pub fn new(
        cluster: &str,
        node: u32,
        identity: &str,
        authorities: &str,
    ) -> Result<Credentials, String> {
        let roots = Arc::new(roots(authorities)?);
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
        let provider = Arc::new(default_provider());
        check(cluster, node, &chain, &roots, &provider)?;
        let client = client_config(&provider, roots.clone(), chain.clone(), key()?);
        let server = server_config(&provider, roots, chain, key()?);
        let unusable = |e: rustls::Error| format!("certificate and key cannot be used: {e}");
        let (client, server) = (client.map_err(unusable)?, server.map_err(unusable)?);
        let (expires, until) = end_of(&own)?;
        let (client, server) = (Arc::new(client), Arc::new(server));
        Ok(Credentials { cluster: cluster.to_owned(), client, server, expires, until })
    }

    /// When the node's certificate ends: seconds since 1970.
    pub fn expires(&self) -> i64 {
        self.expires
    }

    /// The same, for people.
    pub fn until(&self) -> &str {
        &self.until
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

/// Whether the other side of an established connection has proved to be this node of this cluster.
pub fn proves(connection: &Connection, cluster: &str, node: u32) -> bool {
    if connection.is_handshaking() {
        return false;
    }
    let own = connection.peer_certificates().and_then(<[_]>::first);
    let parsed = own.and_then(|own| ParsedCertificate::try_from(own).ok());
    let (Some(parsed), Ok(name)) = (parsed, server_name(cluster, node)) else { return false };
    verify_server_name(&parsed, &name).is_ok()
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

fn roots(authorities: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authorities)? {
        let added = roots.add(certificate);
        added.map_err(|e| format!("an authority's certificate cannot be used: {e}"))?;
    }
    match roots.is_empty() {
        true => Err("no authority's certificate in it: `lockify cluster init` makes one".into()),
        false => Ok(roots),
    }
}

/// Other nodes will look at this node's certificate as this does: better to hear it at the start.
fn check(
    cluster: &str,
    node: u32,
    chain: &[CertificateDer<'_>],
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<(), String> {
    let name = server_name(cluster, node).map_err(|e| e.to_string())?;
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone());
    let verifier = verifier.build().map_err(|e| e.to_string())?;
    let Some((own, between)) = chain.split_first() else { return Ok(()) };
    let valid = verifier.verify_server_cert(own, between, &name, &[], UnixTime::now());
    let wrong = |e| format!("node {node} of cluster {cluster:?}: {}", explain(&e));
    valid.map(drop).map_err(wrong)
}

fn client_config(
    provider: &Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
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
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
    let verifier = verifier.build().map_err(|e| rustls::Error::General(e.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    // As for the client. Without tickets there is no early data either, which could be replayed.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(config)
}

/// When a certificate ends.
fn end_of(certificate: &CertificateDer<'_>) -> Result<(i64, String), String> {
    let parsed = parse_x509_certificate(certificate);
    let (_, parsed) = parsed.map_err(|e| format!("its certificate cannot be read: {e}"))?;
    let end = parsed.validity().not_after;
    Ok((end.timestamp(), end.to_string()))
}
