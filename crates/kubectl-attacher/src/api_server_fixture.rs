//! An API server of a few answers, for tests of what the commands make of them.

use jiff::Timestamp;
use kube::{Client, Config};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::commands::{ClusterFlags, Context};
use crate::gather::{Reader, Sources};
use crate::output::Style;

/// An object or a list, or the code of an error.
pub type Answer = Result<Value, u16>;

/// Answers each request by a function of its path and query.
pub struct ApiServerFixture {
    client: Client,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ApiServerFixture {
    /// Serves until the process ends.
    pub fn start(answer: impl Fn(&str, &str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, log) = (Arc::new(answer), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
                thread::spawn(move || serve(&stream.unwrap(), &*answer, &log));
            }
        });
        let mut config = Config::new(url.parse().unwrap());
        // The machine may have no CA certificates, without which no client is made.
        config.root_cert = Some(Vec::new());
        Self {
            client: Client::try_from(config).unwrap(),
            requests,
        }
    }

    /// What `why` reads from.
    pub fn sources(&self) -> Sources {
        Sources::new(Reader::new(self.client.clone()), Timestamp::now())
    }

    /// What a command runs in, with the namespace shop.
    pub fn context(&self) -> Context {
        Context {
            client: self.client.clone(),
            namespace: "shop".to_owned(),
            style: Style::PLAIN,
            flags: ClusterFlags::default(),
        }
    }

    /// Method, path and query of each request so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Reads one request and answers it.
fn serve(stream: &TcpStream, answer: &impl Fn(&str, &str) -> Answer, requests: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    // A client may open a connection that it does not need.
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
    }
    // A body that is left unread resets the connection.
    std::io::copy(&mut reader.take(length), &mut std::io::sink()).unwrap();
    let mut words = line.split_whitespace();
    let method = words.next().unwrap_or_default();
    let target = words.next().unwrap_or_default();
    requests.lock().unwrap().push(format!("{method} {target}"));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (code, body) = match answer(path, query) {
        Ok(body) => (200, body),
        Err(code) => {
            let message = format!("error {code} for {path}");
            let reason = match code {
                403 => "Forbidden",
                404 => "NotFound",
                410 => "Expired",
                _ => "InternalError",
            };
            let status = json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
            });
            (code, status)
        }
    };
    let (text, mut out) = (body.to_string(), stream);
    let head = format!(
        "HTTP/1.1 {code} Scripted\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    out.write_all(head.as_bytes()).unwrap();
    out.write_all(text.as_bytes()).unwrap();
}

/// A list, whole.
pub fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "9"}, "items": items})
}

/// A page of a list; `next` is the token of the page after it.
pub fn page(items: &[Value], next: &str) -> Value {
    let mut page = list(items);
    page["metadata"]["continue"] = next.into();
    page
}

/// A VolumeAttachment of pv1 to node1 that is not attached yet.
pub fn attachment(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": "7"},
        "spec": {"attacher": "ssd.csi.test", "nodeName": "node1", "source": {"persistentVolumeName": "pv1"}},
        "status": {"attached": false},
    })
}
