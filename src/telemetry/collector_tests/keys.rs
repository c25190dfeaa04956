//! What is told of a key that cannot be used.

use std::io::Write;

use super::*;

/// Collects what is logged.
#[derive(Clone, Default)]
struct Log(Arc<parking_lot::Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether a text holds eight bytes in a row of a secret: as they are, as a list of numbers, or in hexadecimal digits.
fn quotes(text: &str, secret: &str) -> bool {
    let text = text.to_lowercase();
    let found = |part: String| text.contains(&part.to_lowercase());
    secret.as_bytes().windows(8).any(|bytes| {
        let joined = |separator: &str, format: fn(&u8) -> String| {
            let parts: Vec<_> = bytes.iter().map(format).collect();
            parts.join(separator)
        };
        found(String::from_utf8_lossy(bytes).into_owned())
            || [", ", ",", " "]
                .iter()
                .any(|separator| found(joined(separator, |byte| byte.to_string())))
            || ["", " ", ":", ", "]
                .iter()
                .any(|separator| found(joined(separator, |byte| format!("{byte:02x}"))))
            || found(joined(", ", |byte| format!("0x{byte:02x}")))
    })
}

/// What becomes of a key on its way into a Secret, and a file.
#[tokio::test]
async fn a_key_that_cannot_be_used_is_told_of_without_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let identity = rcgen::generate_simple_self_signed(vec!["collector".to_owned()]).unwrap();
    let pem = identity.signing_key.serialize_pem();
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let (begin, end) = ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----");
    let accidents = [
        ("blanks for line ends", format!("{begin} {body} {end}")),
        ("no line ends", format!("{begin}{body}{end}")),
        ("a line end at the end", format!("{begin}{body}{end}\n")),
        ("the two letters \\n", format!("{begin}\\n{body}\\n{end}")),
        ("cut in the body", pem[..pem.len() / 2].to_owned()),
        ("cut in the END line", pem[..pem.len() - 10].to_owned()),
        ("no END line", format!("{begin}\n{body}\n")),
        ("no END line, CRLF", format!("{begin}\r\n{body}\r\n")),
        (
            "a BEGIN line without its end",
            format!("-----BEGIN PRIVATE KEY {body}\n{end}\n"),
        ),
        ("a BEGIN line with the body", format!("{begin}{body}\n{end}\n")),
        ("an END line with the body", format!("{begin}\n{body}{end}\n")),
        (
            "another label",
            format!("-----BEGIN {body}-----\n{body}\n-----END {body}-----\n"),
        ),
        (
            "a stranger in the body",
            format!("{begin}\n{}!{}\n{end}\n", &body[..40], &body[40..]),
        ),
        ("in quotes", format!("\"{begin}\\n{body}\\n{end}\"")),
        ("the body alone", body.clone()),
        ("encoded once more", format!("{begin}\n{}\n{end}\n", body.repeat(2))),
    ];
    let certificate = directory.path().join("cert.pem");
    std::fs::write(&certificate, identity.cert.pem()).unwrap();
    let key = directory.path().join("key.pem");
    for ((accident, text), protocol) in accidents
        .iter()
        .flat_map(|accident| PROTOCOLS.into_iter().rev().map(move |protocol| (accident, protocol)))
    {
        std::fs::write(&key, text).unwrap();
        // The key stands in the place of each file, as files can be mixed up as well.
        for place in 0..3 {
            let file = |own: &std::path::Path, number| Some(if place == number { &key } else { own }.to_path_buf());
            let transport = TransportSettings {
                certificate: file(&certificate, 1),
                client_certificate: file(&certificate, 2),
                client_key: Some(key.clone()),
                ..transport()
            };
            let mut collector = collector(protocol, "https://127.0.0.1:1", transport);
            let log = Log::default();
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_writer(move || writer.clone())
                .finish();
            tracing::subscriber::with_default(subscriber, || collector.prepare());
            let logged = String::from_utf8(log.0.lock().clone()).unwrap();
            let error = collector.build().err().map(|error| format!("{error} {error:?}"));
            let told = format!("{:?} {error:?} {logged}", collector.told);
            assert!(!quotes(&told, &body), "{accident}, {protocol:?}, {place}: {told}");
            assert!(
                error.is_some() && logged.contains("key.pem"),
                "{accident}, {protocol:?}, {place}: {told}"
            );
        }
    }
    // CRLF alone is no accident.
    std::fs::write(&key, pem.replace('\n', "\r\n")).unwrap();
    for protocol in PROTOCOLS {
        let good = TransportSettings {
            certificate: Some(certificate.clone()),
            client_certificate: Some(certificate.clone()),
            client_key: Some(key.clone()),
            ..transport()
        };
        assert!(
            collector(protocol, "https://127.0.0.1:1", good).build().is_ok(),
            "{protocol:?}"
        );
    }
}
