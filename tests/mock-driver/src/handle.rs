//! Starting a mock driver, and the handle to steer and watch it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::calls::{CallLog, CallRecord, InFlight};
use super::control::{self, CommandError, ControlCommand, Reply};
use super::facts::Method;
use super::script::Rule;
use super::server::{ListenEndpoint, ListenError, Server};
use super::service::MockService;
use super::settings::{ControllerCapability, MockSettings};
use super::shared::MockShared;
use super::tls::{Acceptor, ServerTls};

/// Calls that are remembered unless the builder says otherwise.
const KEEP_CALLS: usize = 100_000;

/// Entry point: `MockDriver::builder("name")`.
pub struct MockDriver;

impl MockDriver {
    /// A mock driver of that name; see [`MockSettings::new`] for what it is at first.
    pub fn builder(driver_name: impl Into<String>) -> MockDriverBuilder {
        MockDriverBuilder::new(MockSettings::new(driver_name))
    }
}

/// A mock driver that is not started yet.
pub struct MockDriverBuilder {
    settings: MockSettings,
    commands: Vec<ControlCommand>,
    keep_calls: usize,
    call_log: Option<Box<dyn Write + Send>>,
    tls: Option<ServerTls>,
}

impl MockDriverBuilder {
    /// A mock driver with these settings.
    pub fn new(settings: MockSettings) -> Self {
        Self {
            settings,
            commands: Vec::new(),
            keep_calls: KEEP_CALLS,
            call_log: None,
            tls: None,
        }
    }

    /// The name that it answers.
    pub fn driver_name(&self) -> &str {
        &self.settings.driver_name
    }

    /// Changes any setting.
    #[must_use]
    pub fn settings(mut self, edit: impl FnOnce(&mut MockSettings)) -> Self {
        edit(&mut self.settings);
        self
    }

    /// Switches on exactly these controller capabilities.
    #[must_use]
    pub fn capabilities(self, capabilities: impl IntoIterator<Item = ControllerCapability>) -> Self {
        self.settings(|settings| settings.capabilities = capabilities.into_iter().collect())
    }

    /// Switches one controller capability off.
    #[must_use]
    pub fn without_capability(self, capability: ControllerCapability) -> Self {
        self.settings(|settings| {
            settings.capabilities.remove(&capability);
        })
    }

    /// Takes the Controller service away: a driver whose volumes need no attachment.
    #[must_use]
    pub fn without_controller_service(self) -> Self {
        self.settings(|settings| settings.controller_service = false)
    }

    /// A driver with topology, by these keys.
    #[must_use]
    pub fn topology<K: Into<String>>(self, keys: impl IntoIterator<Item = K>) -> Self {
        self.settings(|settings| settings.topology_keys = keys.into_iter().map(Into::into).collect())
    }

    /// Only these nodes exist.
    #[must_use]
    pub fn nodes<N: Into<String>>(self, nodes: impl IntoIterator<Item = N>) -> Self {
        self.settings(|settings| settings.nodes = Some(nodes.into_iter().map(Into::into).collect()))
    }

    /// Most volumes on a node.
    #[must_use]
    pub fn attach_limit(self, limit: usize) -> Self {
        self.settings(|settings| settings.attach_limit = Some(limit))
    }

    /// Volumes spring into being when they are first used.
    #[must_use]
    pub fn accept_any_volume(self) -> Self {
        self.settings(|settings| settings.accept_any_volume = true)
    }

    /// How long each call of a method takes.
    #[must_use]
    pub fn delay(self, method: Method, delay: Duration) -> Self {
        self.settings(|settings| {
            settings.delays.insert(method, delay);
        })
    }

    /// A volume that exists from the start.
    #[must_use]
    pub fn volume(self, id: impl Into<String>) -> Self {
        self.command(ControlCommand::CreateVolume {
            volume: id.into(),
            capacity_bytes: None,
        })
    }

    /// A rule that is in force from the start.
    #[must_use]
    pub fn rule(self, rule: Rule) -> Self {
        self.command(ControlCommand::Rule(rule))
    }

    /// A command that is carried out before the driver listens.
    #[must_use]
    pub fn command(mut self, command: ControlCommand) -> Self {
        self.commands.push(command);
        self
    }

    /// How many calls are remembered; the oldest are forgotten. At least one; 100,000 unless set.
    #[must_use]
    pub fn keep_calls(mut self, count: usize) -> Self {
        self.keep_calls = count;
        self
    }

    /// Where each call that ended is written as a line of JSON.
    #[must_use]
    pub fn call_log(mut self, writer: impl Write + Send + 'static) -> Self {
        self.call_log = Some(Box::new(writer));
        self
    }

    /// Serves TLS on a TCP port. A unix socket stays as it is.
    #[must_use]
    pub fn tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Listens on a unix socket. A socket file whose process is gone is replaced.
    pub async fn start(self, socket: impl AsRef<Path>) -> Result<MockHandle, MockStartError> {
        self.start_on(ListenEndpoint::Unix(socket.as_ref().to_owned())).await
    }

    /// Listens anywhere.
    pub async fn start_on(self, endpoint: ListenEndpoint) -> Result<MockHandle, MockStartError> {
        let shared = MockShared::new(self.settings, CallLog::new(self.keep_calls, self.call_log));
        for command in self.commands {
            control::apply(&shared, command)?;
        }
        let tls = self.tls.as_ref().map(ServerTls::acceptor).transpose();
        let tls = Acceptor::new(RwLock::new(tls.map_err(ListenError::from)?));
        let service = MockService {
            shared: Arc::clone(&shared),
        };
        let server = Server::start(service, &endpoint, Arc::clone(&tls)).await?;
        let endpoint = server.endpoint.clone();
        Ok(MockHandle {
            inner: Arc::new(MockHandleInner {
                shared,
                endpoint,
                tls,
                server: Mutex::new(Some(server)),
                former: Mutex::new(Vec::new()),
            }),
        })
    }
}

/// Why a mock driver did not start.
#[derive(Debug, thiserror::Error)]
pub enum MockStartError {
    /// It could not listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// One of the commands to carry out first was wrong.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// A mock driver that was started. Clones steer the same driver; when the last one is dropped, it stops serving.
#[derive(Clone)]
pub struct MockHandle {
    inner: Arc<MockHandleInner>,
}

struct MockHandleInner {
    shared: Arc<MockShared>,
    endpoint: ListenEndpoint,
    tls: Acceptor,
    server: Mutex<Option<Server>>,
    /// Those that hang and were replaced.
    former: Mutex<Vec<Server>>,
}

impl MockHandle {
    /// Where it listens; with the port the system chose.
    pub fn endpoint(&self) -> &ListenEndpoint {
        &self.inner.endpoint
    }

    /// The path of its socket, if it is a unix socket.
    pub fn socket(&self) -> Option<PathBuf> {
        match &self.inner.endpoint {
            ListenEndpoint::Unix(path) => Some(path.clone()),
            ListenEndpoint::Tcp(_) => None,
        }
    }

    /// Carries out a command; a question gets its answer.
    pub fn apply(&self, command: ControlCommand) -> Result<Option<serde_json::Value>, CommandError> {
        match control::apply(&self.inner.shared, command)? {
            Reply::Done => Ok(None),
            Reply::Value(value) => Ok(Some(value)),
            Reply::DropConnections => {
                self.drop_connections();
                Ok(None)
            }
        }
    }

    /// Adds a rule after those that are there.
    pub fn script(&self, rule: Rule) {
        self.inner.shared.change(|state| state.script.add(rule));
    }

    /// Lets a call go on that a rule holds, see [`Rule::until_released`].
    pub fn release(&self, call: u64) {
        self.inner.shared.release(call);
    }

    /// Removes all rules.
    pub fn clear_rules(&self) {
        self.inner.shared.change(|state| state.script.clear());
    }

    /// Removes the rules that are for this volume only.
    pub fn clear_rules_of(&self, volume: &str) {
        self.inner.shared.change(|state| state.script.clear_of(volume));
    }

    /// Removes the rules that are for this PersistentVolumeClaim only.
    pub fn clear_rules_of_claim(&self, claim: &str) {
        self.inner.shared.change(|state| state.script.clear_of_claim(claim));
    }

    /// The rules that are not used up, with what is left of them.
    pub fn rules(&self) -> Vec<Rule> {
        self.inner.shared.read(|state| state.script.remaining().to_vec())
    }

    /// Changes any setting.
    pub fn settings(&self, edit: impl FnOnce(&mut MockSettings)) {
        self.inner.shared.change(|state| edit(&mut state.settings));
    }

    /// Switches a controller capability.
    pub fn set_capability(&self, capability: ControllerCapability, on: bool) {
        self.settings(|settings| {
            if on {
                settings.capabilities.insert(capability)
            } else {
                settings.capabilities.remove(&capability)
            };
        });
    }

    /// Sets what Probe answers.
    pub fn set_ready(&self, ready: bool) {
        self.settings(|settings| settings.ready = ready);
    }

    /// Changes the driver's name.
    pub fn set_driver_name(&self, name: impl Into<String>) {
        self.settings(|settings| settings.driver_name = name.into());
    }

    /// Makes a volume of 1 GiB of that id unless there is one.
    pub fn create_volume(&self, id: &str) {
        self.inner
            .shared
            .change(|state| state.backend.ensure_volume(id, 1 << 30));
    }

    /// Removes a volume, attached or not; false when there is none.
    pub fn delete_volume(&self, id: &str) -> bool {
        self.inner.shared.change(|state| state.backend.remove_volume(id))
    }

    /// Attaches a volume behind the caller's back; no limit or access mode is heeded, and an unknown volume springs into being.
    pub fn drift_attach(&self, volume: &str, node: &str) {
        self.inner
            .shared
            .change(|state| state.backend.drift_attach(volume, node));
    }

    /// Detaches a volume behind the caller's back; false when it was not attached.
    pub fn drift_detach(&self, volume: &str, node: &str) -> bool {
        self.inner
            .shared
            .change(|state| state.backend.drift_detach(volume, node))
    }

    /// The volumes that CreateVolume made and DeleteVolume did not remove: their IDs, and the names that they were made under.
    pub fn volumes(&self) -> BTreeMap<String, String> {
        self.inner.shared.read(|state| state.backend.made())
    }

    /// Which volume is attached to which node.
    pub fn published(&self) -> BTreeSet<(String, String)> {
        self.inner.shared.read(|state| state.backend.published())
    }

    /// Waits until the attachments are as wanted, and returns them. Waits for ever if they never are: set a time limit
    /// around it. Looks at all attachments after each change, so it is for tests with some thousands of them at most.
    pub async fn wait_for_published(
        &self,
        wanted: impl Fn(&BTreeSet<(String, String)>) -> bool,
    ) -> BTreeSet<(String, String)> {
        let mut changes = self.inner.shared.changes();
        loop {
            let published = self.published();
            // The sender lives as long as this handle, so a change is the only way on.
            if wanted(&published) || changes.changed().await.is_err() {
                return published;
            }
        }
    }

    /// All recorded calls in the order of arrival.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.inner.shared.calls.records()
    }

    /// How many calls arrived, those that are not remembered included.
    pub fn call_count(&self) -> u64 {
        self.inner.shared.calls.count()
    }

    /// The recorded calls of one method.
    pub fn calls_of(&self, method: Method) -> Vec<CallRecord> {
        self.calls().into_iter().filter(|call| call.method == method).collect()
    }

    /// How many calls run now, and ran at the same time at most.
    pub fn in_flight(&self) -> InFlight {
        self.inner.shared.calls.in_flight(None)
    }

    /// The same for the calls of one method.
    pub fn in_flight_of(&self, method: Method) -> InFlight {
        self.inner.shared.calls.in_flight(Some(method))
    }

    /// Waits for a call the predicate holds for, and returns its record. Looks at the recorded calls first, then at each call when it
    /// arrives and when it ends. The predicate must not use the handle. Waits for ever if there is no such call: set a time limit
    /// around it.
    pub async fn wait_for_call(&self, wanted: impl Fn(&CallRecord) -> bool + Send + 'static) -> CallRecord {
        match self.inner.shared.calls.wait_for(Box::new(wanted)).await {
            Ok(record) => record,
            // The log keeps its waiters as long as this handle lives.
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits for so many calls the predicate holds for, as [`MockHandle::wait_for_call`] does for one.
    pub async fn wait_for_calls(
        &self,
        count: usize,
        wanted: impl Fn(&CallRecord) -> bool + Send + Sync + 'static,
    ) -> Vec<CallRecord> {
        let wanted = Arc::new(wanted);
        let mut found: Vec<CallRecord> = Vec::new();
        while found.len() < count {
            let wanted = Arc::clone(&wanted);
            let known: BTreeSet<u64> = found.iter().map(|call| call.id).collect();
            let other = move |call: &CallRecord| !known.contains(&call.id) && wanted(call);
            found.push(self.wait_for_call(other).await);
        }
        found
    }

    /// Waits until something is so that the driver knows, and looks again after each change of its state and of its calls. Waits for ever
    /// if it never is: set a time limit around it.
    pub async fn wait_until(&self, is_so: impl Fn(&Self) -> bool) {
        let shared = &self.inner.shared;
        let (mut state, mut calls) = (shared.changes(), shared.calls.changes());
        // The senders live as long as this handle.
        while !is_so(self) {
            tokio::select! {
                _ = state.changed() => {}
                _ = calls.changed() => {}
            }
        }
    }

    /// Serves new TCP connections by TLS with these certificates; those that stand stay as they are.
    pub fn set_tls(&self, tls: &ServerTls) -> Result<(), ListenError> {
        *self.inner.tls.write() = Some(tls.acceptor()?);
        Ok(())
    }

    /// Waits until so many connections are open; not at all when it is stopped. Set a time limit around it.
    pub async fn wait_for_connections(&self, count: usize) {
        let open = self.inner.server.lock().as_ref().map(Server::open);
        if let Some(mut open) = open {
            drop(open.wait_for(|open| *open == count).await);
        }
    }

    /// Closes all connections; new ones are accepted.
    pub fn drop_connections(&self) {
        if let Some(server) = &*self.inner.server.lock() {
            server.drop_connections();
        }
    }

    /// Stops as a driver that dies: closes all connections and removes the socket. The volumes, rules and records stay for
    /// [`MockHandle::start_again`]. Does nothing when it is stopped already.
    pub async fn stop(&self) {
        let server = self.inner.server.lock().take();
        if let Some(server) = server {
            server.stop().await;
        }
    }

    /// A new process takes the driver's place at its endpoint while the former one hangs: its connections stay open and nothing
    /// is answered over them, until [`MockHandle::end_former`]. Both work at the same volumes.
    pub async fn replace(&self) -> Result<(), ListenError> {
        let former = self.inner.server.lock().take();
        if let Some(former) = former {
            former.hang()?;
            self.inner.former.lock().push(former);
        }
        self.listen().await
    }

    /// Ends the processes that were replaced.
    pub async fn end_former(&self) {
        let former = std::mem::take(&mut *self.inner.former.lock());
        for server in former {
            server.end().await;
        }
    }

    /// Listens again at the same place after [`MockHandle::stop`]. A driver that runs is stopped first.
    pub async fn start_again(&self) -> Result<(), ListenError> {
        self.stop().await;
        self.listen().await
    }

    async fn listen(&self) -> Result<(), ListenError> {
        let service = MockService {
            shared: Arc::clone(&self.inner.shared),
        };
        let server = Server::start(service, &self.inner.endpoint, Arc::clone(&self.inner.tls)).await?;
        *self.inner.server.lock() = Some(server);
        Ok(())
    }
}
