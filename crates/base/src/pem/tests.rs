//! Texts that are not quite right: what Go passes over, and what is said of the rest.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::crypto::aws_lc_rs::default_provider;

use super::{IdentityError, PemError, authorities, identity};

fn pem(label: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        STANDARD.encode(der)
    )
}

/// A certificate of this key, with nothing in it.
fn plain(key: &KeyPair) -> Vec<u8> {
    CertificateParams::default().self_signed(key).unwrap().der().to_vec()
}

#[test]
fn what_is_broken_beside_a_certificate_to_trust_is_passed_over() {
    let der = plain(&KeyPair::generate().unwrap());
    let good = pem("CERTIFICATE", &der);
    let cut = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n");
    let broken = format!("{}-----END CERTIFICATE-----\n", cut("!"));
    let with = |before: &str| format!("{before}{good}").into_bytes();
    let wide: Vec<u8> = good.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let rows: [(Vec<u8>, Result<usize, &str>); 14] = [
        (with(&good), Ok(2)),
        (with(&broken), Ok(1)),
        (with(&cut("AQID")), Ok(1)),
        (with(&cut("AQ==")), Ok(1)),
        (with(&pem("CERTIFICATE", b"none")), Ok(1)),
        (with(&pem("PRIVATE KEY", b"none")), Ok(1)),
        (format!("{good}{}", cut("AQID")).into_bytes(), Ok(1)),
        ([&b"subject=/O=Soci\xe9t\xe9\n"[..], good.as_bytes()].concat(), Ok(1)),
        (der, Err("holds no certificate in PEM form")),
        (wide, Err("holds no certificate in PEM form")),
        (cut("AQID").into_bytes(), Err("is cut off")),
        (broken.into_bytes(), Err("is not base64")),
        (
            pem("CERTIFICATE", b"none").into_bytes(),
            Err("holds no certificate that can be read"),
        ),
        (good.replace('\n', " ").into_bytes(), Err("has lost its line ends")),
    ];
    for (text, wanted) in rows {
        let shown = String::from_utf8_lossy(&text).into_owned();
        match (authorities(&text), wanted) {
            (Ok(found), Ok(count)) => assert_eq!(found.len(), count, "{shown}"),
            (Err(problem), Err(words)) => assert!(problem.to_string().starts_with(words), "{problem}: {shown}"),
            (found, _) => panic!("{found:?}, wanted {wanted:?}: {shown}"),
        }
    }
}

#[test]
fn a_client_certificate_is_for_the_server_to_judge() {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    // What says that it is of version 3 says that it is of version 1.
    let mut version_1 = plain(&key);
    let version = version_1.windows(5).position(|bytes| bytes == [0xa0, 3, 2, 1, 2]);
    version_1[version.unwrap() + 4] = 0;
    let mut unknown = CustomExtension::from_oid_content(&[2, 5, 29, 99], vec![5, 0]);
    unknown.set_criticality(true);
    let mut params = CertificateParams::default();
    params.custom_extensions.push(unknown);
    let unknown = params.self_signed(&key).unwrap().der().to_vec();

    let own = pem("PRIVATE KEY", &key.serialize_der());
    for (certificate, wanted) in [
        (plain(&key), Ok(1)),
        (version_1, Ok(1)),
        (unknown, Ok(1)),
        (plain(&other), Err(IdentityError::Mismatch)),
        (
            b"none".to_vec(),
            Err(IdentityError::Certificate(PemError::NoCertificate)),
        ),
    ] {
        let certificate = pem("CERTIFICATE", &certificate);
        let found = identity(certificate.as_bytes(), own.as_bytes(), &default_provider());
        assert_eq!(found.map(|found| found.cert.len()), wanted, "{certificate}");
    }
}

#[test]
fn a_key_with_a_passphrase_is_called_encrypted() {
    let key = KeyPair::generate().unwrap();
    let certificate = pem("CERTIFICATE", &plain(&key));
    let headers = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n";
    let old = pem("RSA PRIVATE KEY", b"none").replacen('\n', &format!("\n{headers}"), 1);
    for (text, problem) in [
        (old, PemError::Encrypted),
        (pem("ENCRYPTED PRIVATE KEY", b"none"), PemError::Encrypted),
        (pem("PRIVATE KEY", b"none"), PemError::Key),
        (certificate.clone(), PemError::Missing("private key")),
    ] {
        let found = identity(certificate.as_bytes(), text.as_bytes(), &default_provider());
        assert_eq!(found.map(drop), Err(IdentityError::Key(problem)), "{text}");
    }
}
