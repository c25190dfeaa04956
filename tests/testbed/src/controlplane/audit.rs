//! The audit log of the API server, as a stream of events.
//!
//! The API server writes the log to its standard output, which is a pipe to this process. So a test can wait for an
//! event without looking again and again. Each line is also kept in a file.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ChildStdout;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::super::error::{Context, Error, Result};

/// The audit policy: whole bodies for the objects that matter to an attacher, never the content of a secret, nothing
/// for the control plane's own housekeeping, and for all else who asked for what.
pub const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources:
  - {group: "", resources: [secrets, serviceaccounts/token]}
  - {group: authentication.k8s.io}
- level: RequestResponse
  resources:
  - {group: storage.k8s.io, resources: [volumeattachments, volumeattachments/status]}
  - {group: "", resources: [persistentvolumes, persistentvolumes/status, events]}
  - {group: events.k8s.io, resources: [events]}
  - {group: attacher.csi.dev}
- level: None
  users: ["system:apiserver", "system:kube-controller-manager"]
- level: None
  userGroups: ["system:serviceaccounts:kube-system"]
- level: None
  nonResourceURLs: ["*"]
- level: Metadata
"#;

/// One request which the API server has answered (stage `ResponseComplete`).
#[derive(Clone, Debug)]
pub struct AuditEvent {
    pub verb: String,
    /// With its query.
    pub uri: String,
    /// Empty for the core group.
    pub api_group: String,
    pub resource: String,
    /// Empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Empty for lists.
    pub name: String,
    pub user_agent: String,
    /// The impersonated user if there was one.
    pub username: String,
    /// Where the policy records it.
    pub request_body: Option<Value>,
    pub response_body: Option<Value>,
    pub response_code: u16,
    pub request_timestamp: Timestamp,
}

impl AuditEvent {
    /// Whether this is a request with this verb to this resource, written `resource` or `resource/subresource`.
    pub fn is(&self, verb: &str, resource: &str) -> bool {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.verb == verb && self.resource == resource && self.subresource == subresource
    }
}

/// The events that came so far. Clones share them.
#[derive(Clone)]
pub struct AuditLog {
    path: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    events: Mutex<Vec<Arc<AuditEvent>>>,
    /// Why a line could not be read or kept.
    unread: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
}

impl AuditLog {
    /// An empty log which will keep its lines in the file `path`.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            shared: Arc::new(Shared {
                events: Mutex::default(),
                unread: Mutex::default(),
                count: watch::Sender::new(0),
            }),
        }
    }

    /// The file with one JSON document on each line.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the output of an API server on a thread of its own until that API server ends.
    pub fn follow(&self, output: ChildStdout) -> Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.path)
            .while_trying(|| format!("open {}", self.path.display()))?;
        let shared = Arc::clone(&self.shared);
        let read = move || {
            let (mut output, mut line) = (BufReader::new(output), Vec::new());
            loop {
                line.clear();
                match output.read_until(b'\n', &mut line) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => {
                        shared.unread.lock().push(error.to_string());
                        break;
                    }
                }
                if let Err(error) = file.write_all(&line) {
                    shared.unread.lock().push(format!("cannot keep it: {error}"));
                }
                // Last, so that an event which was waited for is in the file too. An API server that is killed leaves half a line.
                match parse(&line) {
                    Ok(event) => event.into_iter().for_each(|event| shared.push(event)),
                    Err(_) if !line.ends_with(b"\n") => {}
                    Err(error) => {
                        let text = String::from_utf8_lossy(&line);
                        shared.unread.lock().push(format!("{error}: {text}"));
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(read)
            .map(drop)
            .while_trying(|| "start a thread".to_owned())
    }

    /// All events so far, in the order in which the answers were complete.
    pub fn events(&self) -> Vec<Arc<AuditEvent>> {
        self.shared.events.lock().clone()
    }

    /// Why lines could not be read or kept: what was asked for may be missing among the events then.
    pub fn unread(&self) -> Vec<String> {
        self.shared.unread.lock().clone()
    }

    /// Waits until there is an event that matches; earlier events count too.
    pub async fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        matches: impl Fn(&AuditEvent) -> bool,
    ) -> Result<Arc<AuditEvent>> {
        let mut count = self.shared.count.subscribe();
        let mut seen = 0;
        let search = async {
            loop {
                count.mark_unchanged();
                let new = self.shared.events.lock()[seen..].to_vec();
                seen += new.len();
                if let Some(found) = new.into_iter().find(|event| matches(event)) {
                    return found;
                }
                // The sender lives in `self`, so the channel is open.
                count.changed().await.ok();
            }
        };
        let found = tokio::time::timeout(limit, search).await;
        found.map_err(|_| Error::TimedOut {
            what: what.to_owned(),
            limit,
            last: format!("{seen} other audit events"),
        })
    }
}

impl Shared {
    fn push(&self, event: AuditEvent) {
        let mut events = self.events.lock();
        events.push(Arc::new(event));
        self.count.send_replace(events.len());
    }
}

/// An event of stage `ResponseComplete`; `None` for other stages and for an empty line.
fn parse(line: &[u8]) -> serde_json::Result<Option<AuditEvent>> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let mut raw: Value = serde_json::from_slice(line)?;
    let received: MicroTime = serde_json::from_value(raw["requestReceivedTimestamp"].clone())?;
    if raw["stage"] != "ResponseComplete" {
        return Ok(None);
    }
    let bodies = ["requestObject", "responseObject"].map(|key| raw[key].take());
    let [request_body, response_body] = bodies.map(|body| Some(body).filter(|body| !body.is_null()));
    let text = |pointer: &str| {
        let found = raw.pointer(pointer).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let mut username = text("/impersonatedUser/username");
    if username.is_empty() {
        username = text("/user/username");
    }
    let code = raw["responseStatus"]["code"].as_u64().unwrap_or_default();
    Ok(Some(AuditEvent {
        verb: text("/verb"),
        uri: text("/requestURI"),
        api_group: text("/objectRef/apiGroup"),
        resource: text("/objectRef/resource"),
        subresource: text("/objectRef/subresource"),
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        user_agent: text("/userAgent"),
        username,
        request_body,
        response_body,
        response_code: u16::try_from(code).unwrap_or_default(),
        request_timestamp: received.0,
    }))
}
