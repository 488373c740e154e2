//! Whom a node believes: certificates that authorities have signed, while these are valid.
//!
//! The library takes an authority's certificate for a name and a key, and never asks whether its time is over. Here it
//! is asked at each handshake, so that an authority ends while a node runs, too.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use x509_parser::parse_x509_certificate;

/// From when until when a certificate is valid.
#[derive(Clone, Debug)]
pub(crate) struct Validity {
    /// Seconds since 1970.
    from: i64,
    /// Seconds since 1970.
    pub(crate) to: i64,
    /// The same, for people.
    pub(crate) until: String,
}

impl Validity {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Validity, String> {
        let parsed = parse_x509_certificate(certificate);
        let (_, parsed) = parsed.map_err(|e| format!("a certificate cannot be read: {e}"))?;
        let (from, to) = (parsed.validity().not_before, parsed.validity().not_after);
        Ok(Validity { from: from.timestamp(), to: to.timestamp(), until: to.to_string() })
    }

    /// That of both which ends first.
    pub(crate) fn earlier(self, other: Option<&Validity>) -> Validity {
        other.filter(|other| other.to < self.to).cloned().unwrap_or(self)
    }

    /// Why it does not count at that time.
    fn fault(&self, now: UnixTime) -> Option<Outdated> {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        match (now < self.from, now > self.to) {
            (true, _) => Some(Outdated::NotYet),
            (_, true) => Some(Outdated::Expired(self.until.clone())),
            _ => None,
        }
    }
}

/// An authority whose time is over, or has not come.
#[derive(Clone, Debug, thiserror::Error)]
enum Outdated {
    #[error(
        "is signed by an authority that has expired ({0}): make another one (`lockify cluster \
         roll-over`) and renew the certificates, or correct the clock"
    )]
    Expired(String),
    #[error("is signed by an authority that is not valid yet: correct the clocks")]
    NotYet,
}

impl From<Outdated> for Error {
    fn from(why: Outdated) -> Error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
    }
}

#[derive(Debug)]
struct Anchor {
    validity: Validity,
    server: Arc<WebPkiServerVerifier>,
    client: Arc<dyn ClientCertVerifier>,
}

impl Anchor {
    fn new(der: CertificateDer<'static>, provider: &Arc<CryptoProvider>) -> Result<Anchor, String> {
        let unusable =
            |e: &dyn std::fmt::Display| format!("an authority's certificate cannot be used: {e}");
        let validity = Validity::of(&der)?;
        let mut root = RootCertStore::empty();
        root.add(der).map_err(|e| unusable(&e))?;
        let root = Arc::new(root);
        let server = WebPkiServerVerifier::builder_with_provider(root.clone(), provider.clone());
        let client = WebPkiClientVerifier::builder_with_provider(root, provider.clone());
        let server = server.build().map_err(|e| unusable(&e))?;
        let client = client.build().map_err(|e| unusable(&e))?;
        Ok(Anchor { validity, server, client })
    }
}

/// The authorities that a node trusts.
#[derive(Debug)]
pub(crate) struct Anchors {
    all: Vec<Anchor>,
    /// Asked what does not depend on an authority.
    any: Arc<WebPkiServerVerifier>,
    names: Vec<DistinguishedName>,
}

impl Anchors {
    /// Those with these certificates.
    ///
    /// # Errors
    /// There is none, or one cannot be used.
    pub(crate) fn new(
        certificates: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Anchors, String> {
        let all = certificates.into_iter().map(|der| Anchor::new(der, provider));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let any = all
            .first()
            .map(|anchor| anchor.server.clone())
            .ok_or("no authority's certificate in it: `lockify cluster init` makes one")?;
        let names = all.iter().flat_map(|a| a.client.root_hint_subjects().to_vec()).collect();
        Ok(Anchors { all, any, names })
    }

    /// How long the authority is valid that has signed this.
    pub(crate) fn end_for(&self, chain: &[CertificateDer<'_>]) -> Option<&Validity> {
        let (own, between) = chain.split_first()?;
        let signed = |a: &&Anchor| {
            a.client.verify_client_cert(own, between, UnixTime::now()).is_ok()
                && a.validity.fault(UnixTime::now()).is_none()
        };
        self.all.iter().filter(signed).map(|a| &a.validity).max_by_key(|v| v.to)
    }

    /// The answer of the first authority that knows the certificate, if its own time is right.
    fn ask<T>(
        &self,
        now: UnixTime,
        verify: impl Fn(&Anchor) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (mut outdated, mut refused) = (None, None);
        for anchor in &self.all {
            match (verify(anchor), anchor.validity.fault(now)) {
                (Ok(verified), None) => return Ok(verified),
                (Ok(_), Some(why)) => outdated = Some(why.into()),
                (Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)), _) => {}
                (Err(why), _) => refused = Some(why),
            }
        }
        // The authority that has signed it says most; others only that it is not theirs.
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        Err(outdated.or(refused).unwrap_or(unknown))
    }
}

impl ServerCertVerifier for Anchors {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.ask(now, |anchor| anchor.server.verify_server_cert(own, between, name, ocsp, now))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any.verify_tls12_signature(message, own, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any.verify_tls13_signature(message, own, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.any.supported_verify_schemes()
    }
}

impl ClientCertVerifier for Anchors {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.names
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.ask(now, |anchor| anchor.client.verify_client_cert(own, between, now))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any.verify_tls12_signature(message, own, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any.verify_tls13_signature(message, own, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.any.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;
    use crate::authority::{Authority, Lifetime};
    use crate::name::server_name;

    /// A node that runs for years sees its authority end.
    #[test]
    fn an_authority_ends_while_a_node_runs() {
        let (now, day) = (SystemTime::now(), Duration::from_secs(24 * 3600));
        let authority = Authority::new("c", Lifetime::Between(now - day, now + 5 * day)).unwrap();
        let own = authority.issue("c", 1, Lifetime::Between(now - day, now + 90 * day)).unwrap();
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let trusted = vec![der(authority.certificate())];
        let anchors = Anchors::new(trusted, &Arc::new(default_provider())).unwrap();
        let (own, name) = (der(&own), server_name("c", 1).unwrap());
        let at = |days: u32| {
            let at = now.duration_since(SystemTime::UNIX_EPOCH).unwrap() + days * day;
            let at = UnixTime::since_unix_epoch(at);
            let as_server = anchors.verify_server_cert(&own, &[], &name, &[], at).map(drop);
            (as_server, anchors.verify_client_cert(&own, &[], at).map(drop))
        };
        assert_eq!(at(4), (Ok(()), Ok(())));
        let (server, client) = at(6);
        for refused in [server.unwrap_err(), client.unwrap_err()] {
            let text = crate::explain(&refused);
            assert!(text.starts_with("its certificate is signed by an authority that"), "{text}");
        }
    }
}
