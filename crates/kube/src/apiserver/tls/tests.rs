//! Forms of certificates, against what Go's client makes of them: `tests/server-certificates`.

use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use serde::Deserialize;

use super::error::API_SERVER;
use super::pem_of;
use super::trust::CaData;
use crate::pem::authorities;
use crate::server_certificate::{self, ServerCertificateError, Trust as _};
use csi_attacher_testbed::Logged;

/// Within the validity of all certificates that are not made to be outside of theirs.
const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_hours(500_000));

/// What Go accepts and the operator does not.
const STRICTER: [&str; 5] = [
    "RSA key of 1024 bits",
    "issuer with an RSA key of 1024 bits",
    "issuer with a P-224 key, ECDSA-SHA256",
    "issuer with a P-224 key, ECDSA-SHA384",
    "issuer with a P-224 key, ECDSA-SHA512",
];
/// What the operator accepts and Go does not. It is a matter of how PEM is written, or of the server that Go's trial had, or the
/// key of the CA data did sign the certificate.
const LAXER: [&str; 4] = [
    "CA data with blanks before",
    "CA data with headers",
    "P-224 key",
    "CA data holds a former self-signed certificate of the server's key",
];

#[derive(Deserialize)]
struct Trial {
    form: String,
    accepted: bool,
    go: String,
    name: String,
    ca: String,
    chain: Vec<String>,
}

fn forms() -> Vec<Trial> {
    serde_json::from_str(include_str!("../../../../../tests/server-certificates/forms.json")).unwrap()
}

fn verify(form: &Trial) -> Result<(), String> {
    let trusted = authorities(form.ca.as_bytes()).map_err(|problem| format!("CA data {problem}"))?;
    let read = |text: &String| CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
    let chain: Vec<_> = form.chain.iter().map(read).collect();
    let (server, sent) = chain.split_first().unwrap();
    let algorithms = default_provider().signature_verification_algorithms.all;
    let name = ServerName::try_from(form.name.as_str()).unwrap();
    server_certificate::verify(&trusted, algorithms, (server, sent), &name, NOW).map_err(|problem| {
        let terms = API_SERVER;
        ServerCertificateError { terms, problem }.to_string()
    })
}

#[test]
fn certificates_are_accepted_as_by_go() {
    let forms = forms();
    let mut differ = Vec::new();
    for form in &forms {
        let outcome = verify(form);
        let expected = form.accepted && !STRICTER.contains(&form.form.as_str());
        if outcome.is_ok() != expected && !LAXER.contains(&form.form.as_str()) {
            differ.push(format!("{}: {outcome:?}, Go: {}", form.form, form.go));
        }
    }
    assert_eq!(differ, Vec::<String>::new());
    assert!(forms.len() > 100);
    for listed in STRICTER.iter().chain(&LAXER) {
        assert!(forms.iter().any(|form| form.form == *listed), "{listed} is no form");
    }
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    for (form, words) in [
        (
            "another name",
            "is not for api.example.org, only for api.example.com, 127.0.0.1",
        ),
        ("no name at all", "has no usable DNS name or IP address"),
        ("name in the subject alone", "(a common name or a URI does not count)"),
        (
            "wildcard for two labels",
            "only for any name one label below example.com: ",
        ),
        ("address as a name", "has no usable DNS name or IP address"),
        (
            "an intermediate is missing",
            "add the certificate of its issuer (\"CN=first\") to the CA data",
        ),
        (
            "CA data holds another certificate of the server's key",
            "(\"CN=root\") to the CA data",
        ),
        ("CA of the same name with another key", "(\"CN=issuer\") to the CA data"),
        (
            "issuer in the CA data has CA:FALSE",
            "signed by \"CN=issuer\", which is in the CA data but is no CA",
        ),
        ("issuer in the CA data may not sign certificates", "lacks keyCertSign"),
        (
            "expired CA",
            "which is in the CA data but expired: put the new certificate",
        ),
        ("CA is not valid yet", "which is in the CA data but is not valid yet"),
        ("CA with usage of clients", "is not a CA for servers"),
        ("CA with an unknown critical extension", "unknown critical extension"),
        (
            "issuer with an RSA key of 1024 bits",
            "has an RSA key of less than 2048 bits",
        ),
        ("issuer with a P-224 key, ECDSA-SHA256", "of an unsupported kind"),
        ("RSA key of 1024 bits", "has an RSA key of 1024 bits"),
        ("expired", "expired at 2021-01-01T00:00:00Z: renew it"),
        (
            "CA data holds the server's certificate, which expired",
            "expired at 2021-01-01T00:00:00Z",
        ),
        ("not valid yet", "is not valid before 2120-01-01T00:00:00Z"),
        ("expired intermediate", "or of an intermediate CA, expired"),
        ("usage of clients", "is not for servers"),
        ("CA that excludes the name", "is invalid: NameConstraintViolation"),
    ] {
        let row = forms().into_iter().find(|row| row.form == form);
        let error = verify(&row.unwrap_or_else(|| panic!("{form} is no form"))).unwrap_err();
        assert!(error.contains(words), "{form}: {error}");
    }
}

/// What is signed is the original: a copy that is changed elsewhere too is found out.
#[test]
fn a_changed_certificate_with_ca_true_is_refused() {
    let form = forms()
        .into_iter()
        .find(|form| form.form == "CA:TRUE, issued by a CA")
        .unwrap();
    let trusted = authorities(form.ca.as_bytes()).unwrap();
    let server = CertificateDer::from_pem_slice(form.chain[0].as_bytes()).unwrap();
    let algorithms = default_provider().signature_verification_algorithms.all;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    for at in 0..server.len() {
        let mut changed = server.to_vec();
        changed[at] ^= 1;
        let changed = CertificateDer::from(changed);
        assert!(
            server_certificate::verify(&trusted, algorithms, (&changed, &[]), &name, NOW).is_err(),
            "accepted with another byte {at}"
        );
    }
    let verified = server_certificate::verify(&trusted, algorithms, (&server, &[]), &name, NOW);
    assert_eq!(verified, Ok(()));
}

/// CA data with two certificates.
fn two_authorities() -> String {
    let form = forms()
        .into_iter()
        .find(|form| form.form == "CA data with a comment, and another before");
    form.unwrap().ca
}

/// Each handshake reads it.
#[test]
fn ca_data_that_cannot_be_read_is_told_once() {
    let (logged, folder) = (Logged::start(), tempfile::tempdir().unwrap());
    let (path, text) = (folder.path().join("ca.crt"), two_authorities());
    let mut config = kube::Config::new("https://127.0.0.1:6443".parse().unwrap());
    let read = authorities(text.as_bytes()).unwrap();
    config.root_cert = Some(read.iter().map(|one| one.to_vec()).collect());
    config.root_cert_file = Some(path.clone());
    let data = CaData::new(&config).unwrap();
    for times in 1..=2 {
        for _ in 0..10 {
            assert_eq!(data.current().unwrap().len(), 2);
        }
        let told = logged.count(tracing::Level::WARN, "cannot read the CA data again");
        assert_eq!(told, times);
        std::fs::write(&path, &text).unwrap();
        data.current();
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn ca_data_is_written_as_it_is_read() {
    let read = authorities(two_authorities().as_bytes()).unwrap();
    assert_eq!(read.len(), 2);
    assert_eq!(authorities(pem_of(&read).as_bytes()), Ok(read));
}
