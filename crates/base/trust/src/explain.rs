//! The meaning of a failed handshake for an operator.

use rustls::{AlertDescription as Alert, CertificateError, Error, InvalidMessage};

/// The event and its remedy, from the view of the node that saw it.
pub fn explain(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(why) => format!("its certificate {}", certificate(why)),
        Error::NoCertificatesPresented => "it showed no certificate: it is no node, or is not \
             configured for this cluster (`lockify cluster add-node` makes a certificate)"
            .into(),
        Error::AlertReceived(alert) => refused(*alert),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => "it does not speak TLS: give \
             all nodes the same [security]"
            .into(),
        other => format!("TLS failed: {other}"),
    }
}

fn certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is not signed by an authority that this node trusts: give all nodes the same ca.pem, \
             or the same cluster key, and the same name of the cluster"
                .into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired: renew it (`lockify cluster renew`), or correct the clock".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet: correct the clocks".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "is that of another node or cluster: give every node its own, and correct the list of \
             nodes"
                .into()
        }
        CertificateError::Other(why) => why.0.to_string(),
        other => format!("cannot be used ({other}): make a new one"),
    }
}

/// The other side's alert: it has the details in its log.
fn refused(alert: Alert) -> String {
    let what = match alert {
        Alert::UnknownCA | Alert::DecryptError => "does not trust this node's authority",
        Alert::CertificateExpired => "says that this node's certificate has expired",
        Alert::CertificateRequired => "wants a certificate, and this node showed none",
        Alert::BadCertificate | Alert::CertificateUnknown | Alert::CertificateRevoked => {
            "does not accept this node's certificate"
        }
        other => return format!("it ended the handshake ({other:?}): see its log"),
    };
    format!("it {what}: see its log, and compare ca.pem (or the cluster key) of both")
}
