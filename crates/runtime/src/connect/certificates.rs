//! The certificates for a driver's endpoint: read from their Secret, and read again whenever it changes.
//!
//! Exactly this one Secret is asked for now and then, its metadata only; its contents are read when there is something new. What was good
//! last stays in use for as long as nothing good replaces it: a Secret that is deleted or spoilt by mistake must not cut off
//! a driver that works.

use futures::StreamExt;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::handshake::HandshakeError;
use crate::api::condition::ConditionReason;
use crate::api::permissions;
use crate::apiserver::{ApiErrorKind, Requests, SecretEvent, SecretWire};
use crate::csi::ClientCertificates;
use crate::objects::SecretReference;
use crate::telemetry::Span;

/// Pauses between two tries to read what cannot be read.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub struct CertificateState {
    pub good: Option<ValidCertificates>,
    /// Why the Secret cannot be used as it is now.
    pub trouble: Option<HandshakeError>,
    /// Grows with each change.
    pub revision: u64,
}

#[derive(Clone, Debug)]
pub struct ValidCertificates {
    pub certificates: ClientCertificates,
    /// The revision they came with.
    pub revision: u64,
}

pub struct CertificateWatcher {
    known: watch::Receiver<CertificateState>,
    _reader: AbortOnDropHandle<()>,
}

impl CertificateWatcher {
    /// Begins to read the Secret for the AttacherConfig of this name.
    pub fn follow(requests: Requests, reference: SecretReference, config: Arc<str>) -> Self {
        let (sender, known) = watch::channel(CertificateState::default());
        let reader = CertificateReader {
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

    pub fn now(&self) -> CertificateState {
        self.known.borrow().clone()
    }

    /// Resolves when more is known than at this revision; 0 is before anything was.
    pub async fn since(&self, revision: u64) -> CertificateState {
        let mut known = self.known.clone();
        let newer = known.wait_for(|known| known.revision > revision).await;
        match newer.map(|known| known.clone()) {
            Ok(known) => known,
            // The reader ended by a fault of ours: what is known stays.
            Err(_) => std::future::pending().await,
        }
    }
}

struct CertificateReader {
    requests: Requests,
    reference: SecretReference,
    config: Arc<str>,
    known: watch::Sender<CertificateState>,
    hasher: RandomState,
    /// Hash of the contents that are in use: to keep a key for a comparison would be one copy too many.
    last: Option<u64>,
}

impl CertificateReader {
    async fn run(mut self) {
        let events = SecretEvent::follow(self.requests.clone(), self.reference.clone());
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                // An unknown state is read to learn the reason.
                SecretEvent::State(_) | SecretEvent::Unknown => self.read().await,
                SecretEvent::Gone => self.set_missing(),
                SecretEvent::Forbidden => self.set_forbidden(),
            }
        }
    }

    async fn read(&mut self) {
        let mut pause = INITIAL_BACKOFF;
        loop {
            let quiet = Span::disabled();
            let secret = self.requests.get::<SecretWire>(&self.reference, None, &quiet);
            match secret.await {
                Ok(secret) => return self.apply(&secret.into_entries()),
                Err(error) if error.kind == ApiErrorKind::NotFound => return self.set_missing(),
                Err(error) if error.is_forbidden() => self.set_forbidden(),
                Err(error) => {
                    let SecretReference { namespace, name } = &self.reference;
                    let message = format!("cannot read Secret {namespace}/{name}: {error}; retrying");
                    self.set_problem(ConditionReason::SecretUnreadable, message);
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_BACKOFF);
        }
    }

    fn apply(&mut self, entries: &BTreeMap<String, Vec<u8>>) {
        let hash = self.hasher.hash_one(entries);
        let certificates = match ClientCertificates::read(entries) {
            Ok(certificates) => certificates,
            Err(error) => {
                let SecretReference { namespace, name } = &self.reference;
                let message = format!("the certificates in Secret {namespace}/{name} cannot be used: {error}");
                return self.set_problem(ConditionReason::TlsInvalid, message);
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
                known.good = Some(ValidCertificates { certificates, revision });
            }
            true
        });
        if renewed {
            let SecretReference { namespace, name } = &self.reference;
            info!(config = &*self.config, namespace, secret = name, "certificates read");
        }
    }

    fn set_missing(&self) {
        let SecretReference { namespace, name } = &self.reference;
        let message = format!(
            "Secret {namespace}/{name} does not exist; create it with the key ca.crt, and tls.crt and tls.key if the driver asks \
             for a client certificate, or fix spec.tls.secretRef"
        );
        self.set_problem(ConditionReason::SecretMissing, message);
    }

    fn set_forbidden(&self) {
        self.set_problem(
            ConditionReason::SecretForbidden,
            permissions::certificates(&self.reference),
        );
    }

    fn set_problem(&self, reason: ConditionReason, message: String) {
        let trouble = HandshakeError {
            is_stalled: reason != ConditionReason::SecretUnreadable,
            reason,
            message,
        };
        let changed = self.known.send_if_modified(|known| {
            let differs = known.trouble.as_ref() != Some(&trouble);
            if differs {
                known.revision += 1;
                known.trouble = Some(trouble.clone());
            }
            differs
        });
        if changed {
            warn!(
                config = &*self.config,
                reason = trouble.reason.as_str(),
                "{}",
                trouble.message
            );
        }
    }
}
