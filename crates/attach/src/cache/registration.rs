//! Which drivers are worked for: each registers where its work goes.

use std::sync::Arc;
use tokio::sync::watch;

use super::cause::EnqueueCause;
use super::routing::{Route, RouteConflict};
use super::store::Store;

/// A driver's place among the routes, given up on drop.
pub struct Registration {
    store: Store,
    driver: Arc<str>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.store.unregister(&self.driver);
    }
}

impl Store {
    /// Makes a driver's queue receive its keys from now on, and fills it with the work that there is.
    pub fn register(&self, route: Route) -> Result<Registration, RouteConflict> {
        let driver = route.facts.name.clone();
        self.inner.routes.write().insert(route)?;
        self.seed(&driver);
        self.inner.arrivals.send_replace(());
        Ok(Registration {
            store: self.clone(),
            driver,
        })
    }

    /// Queues everything of a driver that may need work.
    pub fn seed(&self, driver: &str) {
        let Some(facts) = self.inner.routes.read().get(driver).map(|route| route.facts.clone()) else {
            return;
        };
        let work = self.inner.index.read().work_of(&facts);
        for name in &work.attachments {
            self.enqueue_attachment(name, EnqueueCause::Resync);
        }
        for name in &work.volumes {
            self.enqueue_volume(name, EnqueueCause::Resync);
        }
    }

    fn unregister(&self, driver: &str) {
        self.inner.routes.write().remove(driver);
        self.inner.vacancies.send_replace(());
    }

    /// Changes whenever a driver gives up its place, so that one that was refused for it may try again.
    pub fn subscribe_removed(&self) -> watch::Receiver<()> {
        self.inner.vacancies.subscribe()
    }
}
