//! An authority, and the certificates that it signs.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::TrustError;
use crate::name::node_name;
use crate::seed::new_key;

/// How long before its making a certificate is valid: other nodes' clocks may be behind.
const CLOCKS_DIFFER: Duration = Duration::from_secs(24 * 3600);

/// How a certificate ends in PEM.
const END: &str = "-----END CERTIFICATE-----";

const DAY: u64 = 24 * 3600;

/// The most days that a certificate can be asked for: a hundred years.
const MOST_DAYS: u32 = 36_525;

/// How long a certificate is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// From a day ago until so many days from now.
    Days(u32),
    /// Between two moments: for tests of expired certificates, and of those that have not begun.
    Between(SystemTime, SystemTime),
    /// For ever: for keys that are derived from a secret without an end.
    Endless,
}

impl Lifetime {
    fn apply(self, params: &mut CertificateParams) -> Result<(), TrustError> {
        match self {
            Lifetime::Days(days @ 1..=MOST_DAYS) => {
                let now = SystemTime::now();
                params.not_before = (now - CLOCKS_DIFFER).into();
                params.not_after = (now + Duration::from_secs(u64::from(days) * DAY)).into();
            }
            Lifetime::Days(days) => {
                let text = format!("{days} days: a certificate is valid for 1 to {MOST_DAYS} days");
                return Err(TrustError::Asked(text));
            }
            Lifetime::Between(from, to) => {
                params.not_before = from.into();
                params.not_after = to.into();
            }
            // RFC 5280, 4.1.2.5: "no well-defined expiration date".
            Lifetime::Endless => {
                params.not_before = date_time_ymd(2000, 1, 1);
                params.not_after = date_time_ymd(9999, 12, 31);
            }
        }
        Ok(())
    }
}

/// The signer of nodes' certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

fn failed(what: &'static str) -> impl Fn(rcgen::Error) -> TrustError {
    move |e| TrustError::crypto(what)(&e)
}

impl Authority {
    /// A new authority for this cluster, with a new key.
    ///
    /// # Errors
    /// The lifetime is out of range, or the system gives no random numbers.
    pub fn new(cluster: &str, lifetime: Lifetime) -> Result<Authority, TrustError> {
        let key = new_key()?;
        Authority::with_key(cluster, key, lifetime)
    }

    pub(crate) fn with_key(
        cluster: &str,
        key: KeyPair,
        lifetime: Lifetime,
    ) -> Result<Authority, TrustError> {
        // For its check of the name's length.
        node_name(cluster, 0)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("Lockify cluster {cluster}"));
        // Signs nodes, no further authorities.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        lifetime.apply(&mut params)?;
        let what = "cannot sign the authority's certificate";
        let certificate = params.self_signed(&key).map_err(failed(what))?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), certificate })
    }

    /// The authority that [`Authority::secret`] has written.
    ///
    /// # Errors
    /// The error in the text.
    pub fn load(secret: &str) -> Result<Authority, String> {
        let unreadable = |what: &str, e: &dyn std::fmt::Display| {
            format!("no {what} of an authority in it that can be read ({e}): copy it back")
        };
        let bytes = secret.as_bytes();
        let der = CertificateDer::from_pem_slice(bytes);
        let der = der.map_err(|e| unreadable("certificate", &e))?;
        let key = PrivateKeyDer::from_pem_slice(bytes).map_err(|e| unreadable("key", &e))?;
        let key = KeyPair::try_from(&key).map_err(|e| unreadable("key", &e))?;
        let issuer = Issuer::from_ca_cert_der(&der, key);
        let issuer = issuer.map_err(|e| unreadable("certificate", &e))?;
        let end = secret.find(END).map_or(0, |at| at + END.len());
        Ok(Authority { issuer, certificate: format!("{}\n", &secret[..end]) })
    }

    /// Its certificate, PEM: what nodes trust.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its certificate and its key, PEM: a process that has it can be any node.
    pub fn secret(&self) -> String {
        format!("{}{}", self.certificate, self.issuer.key().serialize_pem())
    }

    /// A new key and certificate for a node: its certificate, then its key, PEM.
    ///
    /// # Errors
    /// As [`Authority::new`].
    pub fn issue(
        &self,
        cluster: &str,
        node: u32,
        lifetime: Lifetime,
    ) -> Result<String, TrustError> {
        let key = new_key()?;
        let what = "cannot make a certificate";
        let mut params =
            CertificateParams::new([node_name(cluster, node)?]).map_err(failed(what))?;
        let subject = format!("Lockify node {node} of {cluster}");
        params.distinguished_name.push(DnType::CommonName, subject);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Of two nodes either may be the one that connects.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        lifetime.apply(&mut params)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed(what))?;
        Ok(certificate.pem() + &key.serialize_pem())
    }
}
