//! What is told of a key that cannot be used.

use std::io::Write;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

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
                .any(|separator| found(joined(separator, ToString::to_string)))
            || ["", " ", ":", ", "]
                .iter()
                .any(|separator| found(joined(separator, |byte| format!("{byte:02x}"))))
            || found(joined(", ", |byte| format!("0x{byte:02x}")))
    })
}

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";

/// The base64 of a key.
fn body_of(pem: &str) -> String {
    pem.lines().filter(|line| !line.starts_with('-')).collect()
}

/// What becomes of a key on its way into a Secret, and a file.
fn accidents(pem: &str) -> [(&'static str, String); 16] {
    let body = body_of(pem);
    [
        ("blanks for line ends", format!("{BEGIN} {body} {END}")),
        ("no line ends", format!("{BEGIN}{body}{END}")),
        ("a line end at the end", format!("{BEGIN}{body}{END}\n")),
        ("the two letters \\n", format!("{BEGIN}\\n{body}\\n{END}")),
        ("cut in the body", pem[..pem.len() / 2].to_owned()),
        ("cut in the END line", pem[..pem.len() - 10].to_owned()),
        ("no END line", format!("{BEGIN}\n{body}\n")),
        ("no END line, CRLF", format!("{BEGIN}\r\n{body}\r\n")),
        (
            "a BEGIN line without its end",
            format!("-----BEGIN PRIVATE KEY {body}\n{END}\n"),
        ),
        ("a BEGIN line with the body", format!("{BEGIN}{body}\n{END}\n")),
        ("an END line with the body", format!("{BEGIN}\n{body}{END}\n")),
        (
            "another label",
            format!("-----BEGIN {body}-----\n{body}\n-----END {body}-----\n"),
        ),
        (
            "a stranger in the body",
            format!("{BEGIN}\n{}!{}\n{END}\n", &body[..40], &body[40..]),
        ),
        ("in quotes", format!("\"{BEGIN}\\n{body}\\n{END}\"")),
        ("the body alone", body.clone()),
        (
            "encoded once more",
            format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(pem)),
        ),
    ]
}

/// A folder with a certificate and the file of a key.
struct Files {
    _folder: tempfile::TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(certificate: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cert.pem");
        std::fs::write(&path, certificate).unwrap();
        Self {
            certificate: path,
            key: folder.path().join("key.pem"),
            _folder: folder,
        }
    }

    /// Settings with these files, of which the one with this number is the key in the place of what it should be.
    fn transport(&self, mixed_up: usize) -> TransportSettings {
        let file = |number| {
            let path = if mixed_up == number {
                &self.key
            } else {
                &self.certificate
            };
            Some(path.clone())
        };
        TransportSettings {
            certificate: file(1),
            client_certificate: file(2),
            client_key: Some(self.key.clone()),
            ..transport()
        }
    }
}

/// What is logged of a collector that cannot be used, and all else that is told of it.
fn told_of(mut collector: OtlpSink) -> (String, String) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || collector.prepare());
    let logged = String::from_utf8(log.0.lock().clone()).unwrap();
    let error = collector.build().map(drop).expect_err("it cannot be used");
    let told = format!("{:?} {error} {error:?}", collector.logged);
    (logged, told)
}

#[tokio::test]
async fn a_key_that_cannot_be_used_is_told_of_without_its_bytes() {
    let identity = rcgen::generate_simple_self_signed(vec!["collector".to_owned()]).unwrap();
    let pem = identity.signing_key.serialize_pem();
    let (files, body) = (Files::new(&identity.cert.pem()), body_of(&pem));
    for (accident, text) in accidents(&pem) {
        std::fs::write(&files.key, text).unwrap();
        for (protocol, place) in PROTOCOLS
            .into_iter()
            .flat_map(|protocol| [0, 1, 2].map(|place| (protocol, place)))
        {
            let collector = collector(protocol, "https://127.0.0.1:1", files.transport(place));
            let (logged, told) = told_of(collector);
            let what = format!("{accident}, {protocol:?}, {place}: {told} {logged}");
            assert!(!quotes(&told, &body) && !quotes(&logged, &body), "{what}");
            assert!(logged.contains("key.pem"), "{what}");
        }
    }
}

#[tokio::test]
async fn a_key_with_the_line_ends_of_windows_can_be_used() {
    let identity = rcgen::generate_simple_self_signed(vec!["collector".to_owned()]).unwrap();
    let files = Files::new(&identity.cert.pem());
    let pem = identity.signing_key.serialize_pem();
    std::fs::write(&files.key, pem.replace('\n', "\r\n")).unwrap();
    for protocol in PROTOCOLS {
        let built = collector(protocol, "https://127.0.0.1:1", files.transport(0)).build();
        assert!(built.is_ok(), "{protocol:?}");
    }
}
