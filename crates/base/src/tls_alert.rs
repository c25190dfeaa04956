//! What a server means by the alert with which it ends a TLS handshake.

use rustls::AlertDescription as Alert;

/// What a person can mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertMeaning {
    /// It does not accept the certificate that we show, or demands one.
    ClientCertificate,
    /// TLS version, cipher suite, key exchange or key type: nothing is in common.
    NothingInCommon,
}

impl AlertMeaning {
    /// The meaning of an alert (RFC 8446, section 6.2, and RFC 5246, section 7.2.2); none where it is about neither.
    ///
    /// A certificate is refused with one of many alerts: `AccessDenied` is for one that is valid and may not come in, `DecryptError` for one
    /// whose key did not sign, `NoCertificate` is that of SSL 3.
    pub fn of(alert: Alert) -> Option<Self> {
        match alert {
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
            | Alert::NoCertificate => Some(Self::ClientCertificate),
            Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::InsufficientSecurity => {
                Some(Self::NothingInCommon)
            }
            _ => None,
        }
    }
}
