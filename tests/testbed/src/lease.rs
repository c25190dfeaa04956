//! Every version that a Lease had, and what its own times say about each change of its holder.

use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::error::{Error, Result};

/// From one holder to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Who held it.
    pub from: String,
    /// Who holds it then.
    pub to: String,
    /// Whether it was given up before, so that nobody had to wait for its end.
    pub released: bool,
    /// From the last time that the former holder wrote to the time at which the next one took it, both as the Lease has them.
    pub rested: SignedDuration,
}

impl Change {
    /// Whether it was taken while the former holder could still have worked. There is no allowance: who takes it has seen no
    /// write for so long, and no replica's clock differs from the other's on one machine.
    pub fn is_early(&self, duration: Duration) -> bool {
        !self.released && self.rested < SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
    }
}

/// The changes that these versions show, in their order. Pure.
pub fn changes(versions: &[LeaseSpec]) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut held: Option<(String, Timestamp)> = None;
    let mut released = false;
    for version in versions {
        let holder = version.holder_identity.clone().unwrap_or_default();
        if holder.is_empty() {
            released = true;
            continue;
        }
        let time = |time: &Option<MicroTime>| time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let (acquired, renewed) = (time(&version.acquire_time), time(&version.renew_time));
        if let Some((from, last)) = held.replace((holder.clone(), renewed))
            && (released || from != holder)
        {
            changes.push(Change {
                from,
                to: holder,
                released,
                rested: acquired.duration_since(last),
            });
        }
        released = false;
    }
    changes
}

/// A watch of the Lease that keeps each version.
pub struct History {
    api: Api<Lease>,
    name: String,
    /// All versions, and how often all was listed: more than once, and versions in between may be missing.
    seen: watch::Receiver<(Vec<LeaseSpec>, usize)>,
    _task: AbortOnDropHandle<()>,
}

impl History {
    /// Begins to watch.
    pub fn start(api: Api<Lease>, name: impl Into<String>) -> Self {
        let name = name.into();
        let (told, seen) = watch::channel((Vec::new(), 0));
        let config = Config::default().fields(&format!("metadata.name={name}"));
        let events = watcher(api.clone(), config).default_backoff();
        let task = tokio::spawn(async move {
            let mut events = events.boxed();
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Init) => told.send_modify(|(_, lists)| *lists += 1),
                    Ok(Event::Apply(lease) | Event::InitApply(lease)) => {
                        told.send_modify(|(versions, _)| versions.extend(lease.spec));
                    }
                    // A watch that broke goes on where it was.
                    _ => {}
                }
            }
        });
        Self {
            api,
            name,
            seen,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Every version up to the one that there is now.
    pub async fn versions(&self, limit: Duration) -> Result<Vec<LeaseSpec>> {
        let now = self.api.get(&self.name).await?.spec;
        let (name, mut seen) = (&self.name, self.seen.clone());
        let has_now = seen.wait_for(|(versions, _)| versions.iter().any(|version| Some(version) == now.as_ref()));
        let seen = tokio::time::timeout(limit, has_now).await;
        Err(Error::Other(match &seen {
            Ok(Ok(seen)) if seen.1 == 1 => return Ok(seen.0.clone()),
            Ok(Ok(seen)) => format!("{name} was listed {} times; versions may be missing", seen.1),
            _ => format!("{name}: {now:?} was not seen"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Lease as it is written by this holder, or by nobody, at this second, taken at that one.
    fn version(holder: Option<&str>, acquired: i64, renewed: i64) -> LeaseSpec {
        let at = |second| Some(MicroTime(Timestamp::from_second(second).unwrap()));
        LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            acquire_time: at(acquired),
            renew_time: at(renewed),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn the_times_of_a_lease_tell_how_it_changed_hands() {
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        let versions = [
            version(a, 10, 10),
            version(a, 10, 12),
            // Given up, and taken at once.
            version(None, 13, 13),
            version(b, 13, 13),
            version(b, 13, 20),
            // Not given up.
            version(c, 23, 23),
            version(a, 25, 25),
            // Taken by the one that gave it up.
            version(None, 26, 26),
            version(a, 27, 27),
        ];
        let changes = changes(&versions);
        let told = changes.iter().map(|change| {
            let is_early = change.is_early(Duration::from_secs(3));
            let how = (change.released, change.rested.as_secs(), is_early);
            (&*change.from, &*change.to, how)
        });
        let expected = [
            ("a", "b", (true, 1, false)),
            ("b", "c", (false, 3, false)),
            ("c", "a", (false, 2, true)),
            ("a", "a", (true, 2, false)),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
}
