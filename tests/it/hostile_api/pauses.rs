//! How long processes stood still. On a slow machine a limit measures that as well, and not the operator alone.

use std::cell::RefCell;
use std::convert::Infallible;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;

use crate::rig::World;
use crate::support::Result;

/// The pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// A look that takes more milliseconds shows that a process stood still.
const SLOW: i64 = 400;

/// When looks ended, in milliseconds. The first entry is when they began.
pub struct Looks(Vec<i64>);

impl Looks {
    /// For how many milliseconds a process stood still.
    pub fn stood_still(&self) -> i64 {
        self.stood_still_between(i64::MIN, i64::MAX)
    }

    /// For how many milliseconds a process stood still between two moments, which are in milliseconds as well.
    pub fn stood_still_between(&self, from: i64, to: i64) -> i64 {
        let looks = self.0.windows(2).map(|pair| (pair[0], pair[1]));
        let slow = looks.filter(|(began, ended)| ended - began > SLOW);
        slow.map(|(began, ended)| (ended.min(to) - began.max(from)).max(0))
            .sum()
    }
}

/// Does some work, and looks meanwhile at the API server, past any proxy or tunnel: the answer of a process that stands still is late. So
/// is each answer when this process stands still, in which proxies, tunnels and mock drivers run. The operator is not looked at: what it
/// takes is what the tests are about.
pub async fn look_during<T>(world: &World, work: LocalBoxFuture<'_, Result<T>>) -> Result<(T, Looks)> {
    let ended = RefCell::new(vec![now()]);
    let looks = Box::pin(look(world, &ended));
    let done = tokio::select! {
        done = work => done?,
        never = looks => match never {},
    };
    let mut ended = ended.into_inner();
    ended.push(now());
    Ok((done, Looks(ended)))
}

/// Looks again and again, and records when each look ended.
async fn look(world: &World, ended: &RefCell<Vec<i64>>) -> Infallible {
    let namespaces = world.fixtures.cluster::<Namespace>();
    loop {
        // A read that names no version is passed on to etcd. What the answers say does not matter.
        drop(namespaces.get("default").await);
        ended.borrow_mut().push(now());
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn now() -> i64 {
    Timestamp::now().as_millisecond()
}
