//! The certificates for a driver's endpoint: read from their Secret, and read again whenever it changes.
//!
//! Exactly this one Secret is asked for now and then, its metadata only; its contents are read when there is something new. What was good
//! last stays in use for as long as nothing good replaces it: a Secret that is deleted or spoilt by mistake must not cut off
//! a driver that works.

use futures::StreamExt;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::handshake::Obstacle;
use super::rights;
use crate::api::condition::Reason;
use crate::csi::Certificates;
use crate::kubernetes::{ApiError, ApiErrorKind, Requests, SecretData, SecretEvent};
use crate::objects::SecretReference;
use crate::telemetry::Span;

/// Pauses between two tries to read what cannot be read.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What is known of the Secret.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The last good certificates.
    pub good: Option<Good>,
    /// Why the Secret is of no use as it is now.
    pub trouble: Option<Trouble>,
    /// Grows with each change.
    pub revision: u64,
}

/// Certificates that can be used.
#[derive(Clone, Debug)]
pub(super) struct Good {
    pub certificates: Certificates,
    /// The revision they came with.
    pub revision: u64,
}

/// Why a Secret is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    reason: Reason,
    pub message: String,
}

impl Trouble {
    /// What it means for a driver for which there are no certificates from before.
    pub fn obstacle(&self) -> Obstacle {
        let (reason, message) = (self.reason, self.message.clone());
        match reason {
            Reason::SecretUnreadable => Obstacle::Unreachable { reason, message },
            _ => Obstacle::Stalled { reason, message },
        }
    }
}

/// Reads the Secret until it is dropped.
pub(super) struct Keys {
    known: watch::Receiver<Known>,
    _reader: AbortOnDropHandle<()>,
}

impl Keys {
    /// Begins to read the Secret for the AttacherConfig of this name.
    pub fn follow(requests: Requests, reference: SecretReference, config: Arc<str>) -> Self {
        let (sender, known) = watch::channel(Known::default());
        let reader = Reader {
            requests,
            reference,
            config,
            known: sender,
            hasher: RandomState::new(),
            last: None,
        };
        Self {
            known,
            _reader: AbortOnDropHandle::new(tokio::spawn(reader.run())),
        }
    }

    /// What is known now.
    pub fn now(&self) -> Known {
        self.known.borrow().clone()
    }

    /// Resolves when more is known than at this revision; 0 is before anything was.
    pub async fn since(&self, revision: u64) -> Known {
        let mut known = self.known.clone();
        let newer = known.wait_for(|known| known.revision > revision).await;
        match newer.map(|known| known.clone()) {
            Ok(known) => known,
            // The reader ended by a fault of ours: what is known stays.
            Err(_) => std::future::pending().await,
        }
    }
}

struct Reader {
    requests: Requests,
    reference: SecretReference,
    config: Arc<str>,
    known: watch::Sender<Known>,
    hasher: RandomState,
    /// Hash of the contents that are in use: to keep a key for a comparison would be one copy too many.
    last: Option<u64>,
}

impl Reader {
    async fn run(mut self) {
        let events = self.requests.follow_secret(&self.reference);
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                // What cannot be told is read to learn why.
                SecretEvent::State(_) | SecretEvent::Unknown => self.read().await,
                SecretEvent::Gone => self.tell(Reason::SecretMissing, missing(&self.reference)),
                SecretEvent::Forbidden => self.tell(Reason::SecretForbidden, rights::certificates(&self.reference)),
            }
        }
    }

    /// Reads until there is an answer.
    async fn read(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.requests.secret(&self.reference, &Span::disabled()).await {
                Ok(data) => return self.take_in(&data),
                Err(error) if error.kind == ApiErrorKind::NotFound => {
                    return self.tell(Reason::SecretMissing, missing(&self.reference));
                }
                Err(error) => {
                    let (reason, message) = unreadable(&self.reference, &error);
                    self.tell(reason, message);
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn take_in(&mut self, data: &SecretData) {
        let hash = self.hasher.hash_one(data.expose());
        let certificates = match Certificates::read(data) {
            Ok(certificates) => certificates,
            Err(error) => {
                let SecretReference { namespace, name } = &self.reference;
                let message = format!("the certificates in Secret {namespace}/{name} cannot be used: {error}");
                return self.tell(Reason::TlsInvalid, message);
            }
        };
        let renewed = self.last.replace(hash) != Some(hash);
        self.known.send_if_modified(|known| {
            if !renewed && known.trouble.is_none() {
                return false;
            }
            known.revision += 1;
            known.trouble = None;
            if renewed {
                let revision = known.revision;
                known.good = Some(Good { certificates, revision });
            }
            true
        });
        if renewed {
            let SecretReference { namespace, name } = &self.reference;
            info!(config = &*self.config, namespace, secret = name, "certificates read");
        }
    }

    fn tell(&self, reason: Reason, message: String) {
        let trouble = Trouble { reason, message };
        let told = trouble.clone();
        let changed = self.known.send_if_modified(|known| {
            let differs = known.trouble.as_ref() != Some(&trouble);
            if differs {
                known.revision += 1;
                known.trouble = Some(trouble);
            }
            differs
        });
        if changed {
            warn!(
                config = &*self.config,
                reason = told.reason.as_str(),
                "{}",
                told.message
            );
        }
    }
}

fn missing(reference: &SecretReference) -> String {
    let SecretReference { namespace, name } = reference;
    format!(
        "Secret {namespace}/{name} does not exist; create it with the key ca.crt, and tls.crt and tls.key if the driver asks \
         for a client certificate, or fix spec.tls.secretRef"
    )
}

fn unreadable(reference: &SecretReference, error: &ApiError) -> (Reason, String) {
    if error.lacks_right() {
        return (Reason::SecretForbidden, rights::certificates(reference));
    }
    let SecretReference { namespace, name } = reference;
    let message = format!("cannot read Secret {namespace}/{name}: {error}; retrying");
    (Reason::SecretUnreadable, message)
}
