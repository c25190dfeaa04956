//! `wait`: until volumes are attached or detached, for scripts and hooks of a drain.

use csi_attacher_base::clock;
use csi_attacher_model::api::AttacherConfigObject;
use csi_attacher_model::objects::{Attachment, PersistentVolumeWire, VolumeAttachmentWire};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::Resource;
use kube::runtime::watcher::{self, Event};
use kube_core::ClusterResourceScope;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::follow::Watch;
use super::why::in_namespace;
use super::{Context, print_line, tell};
use crate::cli::{ArgumentError, WaitArguments, WaitFor, WaitKind};
use crate::error::{EXIT_OK, PluginError, Result};
use crate::gather::{Readable, Sources};
use crate::observed::{ClaimRecord, Lookup, is_settled};
use crate::output;

/// How often an unbound claim is looked at.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How many VolumeAttachments are named when the time is over.
const MAX_NAMED: usize = 10;

/// The VolumeAttachments that are waited for.
#[derive(Clone, Debug)]
enum Target {
    Node(String),
    Volume(String),
    /// A claim that exists; `name` has its namespace. It has no volume before it is bound.
    Claim {
        name: String,
        volume: Option<String>,
    },
    Attachment(String),
}

impl Target {
    fn concerns(&self, attachment: &Attachment) -> bool {
        let is_of = |volume: &String| attachment.volume_name().is_some_and(|name| **name == **volume);
        match self {
            Self::Node(node) => *attachment.node == **node,
            Self::Volume(volume) => is_of(volume),
            Self::Claim { volume, .. } => volume.as_ref().is_some_and(is_of),
            Self::Attachment(name) => *attachment.name == **name,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(node) => write!(f, "Node {node}"),
            Self::Volume(volume) => write!(f, "PersistentVolume {volume}"),
            Self::Claim { name, .. } => write!(f, "PersistentVolumeClaim {name}"),
            Self::Attachment(name) => write!(f, "VolumeAttachment {name}"),
        }
    }
}

pub(super) async fn run(context: &Context, arguments: &WaitArguments) -> Result<u8> {
    let began = std::time::Instant::now();
    let mut state = Waited::default();
    let ended = if arguments.timeout.is_zero() {
        once(context, arguments, &mut state).await?
    } else {
        let waiting = follow(context, arguments, &mut state);
        let ended = tokio::time::timeout(arguments.timeout, waiting).await;
        ended.ok().transpose()?
    };
    let Some(target) = ended else {
        return Err(PluginError::Timeout {
            what: state.words(),
            seconds: arguments.timeout.as_secs(),
        });
    };
    let done = match arguments.state {
        WaitFor::Detached => "detached",
        WaitFor::Attached => "attached",
    };
    let seen = match state.seen.len() {
        1 => "1 VolumeAttachment".to_owned(),
        count => format!("{count} VolumeAttachments"),
    };
    let span = output::span(began.elapsed());
    print_line(&format!("{target}: all volumes are {done}, after {span}, {seen} seen"))?;
    Ok(EXIT_OK)
}

/// What is waited for; none for a claim that has to be bound first.
async fn target(context: &Context, arguments: &WaitArguments) -> Result<Option<Target>> {
    if let Some(node) = &arguments.node {
        return Ok(Some(Target::Node(node.clone())));
    }
    let object = arguments.object.as_ref().ok_or(ArgumentError::NothingToWaitFor)?;
    let (kind, name) = object.with(arguments.name.as_deref())?;
    match kind {
        WaitKind::Pv => Ok(Some(Target::Volume(name))),
        WaitKind::Va => Ok(Some(Target::Attachment(name))),
        WaitKind::Pvc => claim(context, &name, arguments.state).await,
        WaitKind::Node => Ok(Some(Target::Node(name))),
    }
}

/// A claim with the volume that it names. Nothing is attached for a claim before it is bound; one that lost its volume still names it.
async fn claim(context: &Context, name: &str, state: WaitFor) -> Result<Option<Target>> {
    let claim = in_namespace::<PersistentVolumeClaim>(&context.sources(), &context.namespace, name).await?;
    let claim = ClaimRecord::from(claim);
    let is_ready = match state {
        WaitFor::Attached => claim.is_bound(),
        WaitFor::Detached => true,
    };
    Ok(is_ready.then(|| Target::Claim {
        name: format!("{}/{name}", context.namespace),
        volume: claim.volume,
    }))
}

/// What was seen so far.
#[derive(Debug, Default)]
struct Waited {
    left: Vec<String>,
    listed: bool,
    /// Names of the VolumeAttachments that are waited for.
    seen: BTreeSet<String>,
    /// Whether one named the target, of whatever driver.
    target_seen: bool,
    /// Whether one was of the driver, at whatever node.
    driver_seen: bool,
    /// The error of the API server, until something is seen again.
    error: Option<String>,
}

impl Waited {
    fn words(&self) -> String {
        let text = self.state();
        match &self.error {
            Some(error) => format!("{text}; last error of the API server: {error}"),
            None => text,
        }
    }

    fn state(&self) -> String {
        if !self.listed {
            return "the VolumeAttachments could not be listed, or the claim is not bound".to_owned();
        }
        if self.left.is_empty() {
            return "there is no VolumeAttachment yet".to_owned();
        }
        let named: Vec<&str> = self.left.iter().take(MAX_NAMED).map(String::as_str).collect();
        let more = self.left.len() - named.len();
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        format!(
            "{} left: {}{more}; go on with: kubectl attacher why va NAME",
            self.left.len(),
            named.join(", ")
        )
    }

    /// Takes note of a VolumeAttachment; whether it is one that is waited for.
    fn observe(&mut self, arguments: &WaitArguments, target: &Target, attachment: &Attachment) -> bool {
        let of_target = target.concerns(attachment);
        let driver = arguments.driver.as_deref();
        let of_driver = driver.is_none_or(|driver| *driver == *attachment.attacher);
        self.target_seen |= of_target;
        self.driver_seen |= of_driver;
        if of_target && of_driver {
            self.seen.insert(attachment.name.to_string());
        }
        of_target && of_driver
    }

    /// Whether the VolumeAttachments are as asked for. A drain goes on after success, so what was never seen attached has to exist: else a
    /// mistyped name would count as detached.
    async fn is_done(
        &self,
        context: &Context,
        arguments: &WaitArguments,
        target: &Target,
        known: &BTreeMap<String, Attachment>,
    ) -> Result<bool> {
        match arguments.state {
            WaitFor::Attached => Ok(!known.is_empty() && left(arguments.state, known).is_empty()),
            WaitFor::Detached if !known.is_empty() => Ok(false),
            WaitFor::Detached if arguments.allow_missing => Ok(true),
            WaitFor::Detached => {
                let sources = context.sources();
                if !self.target_seen {
                    Box::pin(require_target(&sources, target)).await?;
                }
                if let Some(driver) = arguments.driver.as_deref().filter(|_| !self.driver_seen) {
                    Box::pin(require_driver(&sources, target, driver)).await?;
                }
                Ok(true)
            }
        }
    }
}

/// Looks once: one list, however long that takes.
async fn once(context: &Context, arguments: &WaitArguments, state: &mut Waited) -> Result<Option<Target>> {
    let Some(target) = target(context, arguments).await? else {
        return Ok(None);
    };
    let sources = context.sources();
    let mut known = BTreeMap::new();
    for attachment in sources.require_attachments().await? {
        if state.observe(arguments, &target, attachment) {
            known.insert(attachment.name.to_string(), (**attachment).clone());
        }
    }
    state.listed = true;
    state.left = left(arguments.state, &known);
    let done = state.is_done(context, arguments, &target, &known).await?;
    Ok(done.then_some(target))
}

/// Follows the VolumeAttachments until it is as asked for. A claim that has to be bound first is waited for.
async fn follow(context: &Context, arguments: &WaitArguments, state: &mut Waited) -> Result<Target> {
    let target = loop {
        if let Some(target) = target(context, arguments).await? {
            break target;
        }
        tokio::time::sleep(CLAIM_POLL_INTERVAL).await;
    };
    let mut watch = Watch::new(context.client.clone(), watcher::Config::default());
    let mut known: BTreeMap<String, Attachment> = BTreeMap::new();
    let mut listed = false;
    loop {
        match watch.next().await? {
            Ok(Event::Init) => {
                listed = false;
                known.clear();
            }
            Ok(Event::InitDone) => listed = true,
            Ok(Event::Apply(wire) | Event::InitApply(wire)) => {
                let attachment = Attachment::from(wire);
                if state.observe(arguments, &target, &attachment) {
                    known.insert(attachment.name.to_string(), attachment);
                }
            }
            Ok(Event::Delete(wire)) => {
                known.remove(wire.metadata.name.as_deref().unwrap_or_default());
            }
            Err(error) => {
                if !arguments.quiet {
                    tell(&error);
                }
                state.error = Some(error);
                continue;
            }
        }
        if !listed {
            continue;
        }
        state.error = None;
        let left = left(arguments.state, &known);
        if state.is_done(context, arguments, &target, &known).await? {
            return Ok(target);
        }
        if (!state.listed || state.left != left) && !arguments.quiet {
            progress(&target, &left);
        }
        state.left = left;
        state.listed = true;
    }
}

/// Names of what is not as asked for.
fn left(state: WaitFor, known: &BTreeMap<String, Attachment>) -> Vec<String> {
    let waits = |attachment: &&Attachment| match state {
        WaitFor::Detached => true,
        WaitFor::Attached => !is_settled(attachment),
    };
    let left = known.values().filter(waits);
    left.map(|attachment| attachment.name.to_string()).collect()
}

fn progress(target: &Target, left: &[String]) {
    let at = clock::now().strftime("%H:%M:%S");
    let text = match left.len() {
        0 => "no VolumeAttachment yet".to_owned(),
        1 => format!("1 volume left: {}", left.join("")),
        count => format!("{count} volumes left"),
    };
    tell(&format!("{at} {target}: {text}"));
}

/// The node, the volume or the VolumeAttachment.
async fn require_target(sources: &Sources, target: &Target) -> Result<()> {
    let reader = &sources.reader;
    let object = target.to_string();
    match target {
        Target::Node(name) => {
            let (node, csi_node) = sources.node(name).await;
            let found = any(&[node.map(drop), csi_node.map(drop)]);
            let read = [Node::plural(&()), CSINode::plural(&())];
            require::<Node>(sources, object, name, &found, &read).await
        }
        Target::Volume(name) => {
            let api = reader.cluster::<PersistentVolumeWire>();
            let found = reader.exists(api, name).await;
            let read = [PersistentVolumeWire::plural(&())];
            require::<PersistentVolumeWire>(sources, object, name, &found, &read).await
        }
        Target::Attachment(name) => {
            // All of them were listed.
            let found = Lookup::Missing;
            require::<VolumeAttachmentWire>(sources, object, name, &found, &[]).await
        }
        // It was read, so that its name is right.
        Target::Claim { .. } => Ok(()),
    }
}

/// The driver: its CSIDriver, its AttacherConfig, or its entry in the CSINode of the node.
async fn require_driver(sources: &Sources, target: &Target, driver: &str) -> Result<()> {
    let scene = sources.driver(driver).await;
    let listed = match target {
        Target::Node(node) => {
            let (_, csi_node) = sources.node(node).await;
            csi_node.and_then(|node| node.drivers.node_id(driver).map(|_| ()))
        }
        Target::Volume(_) | Target::Claim { .. } | Target::Attachment(_) => Lookup::Missing,
    };
    let found = any(&[scene.attach_required.map(drop), scene.config.map(drop), listed]);
    let read = [
        CSIDriver::plural(&()),
        AttacherConfigObject::plural(&()),
        CSINode::plural(&()),
    ];
    require::<CSIDriver>(sources, format!("CSIDriver {driver}"), driver, &found, &read).await
}

/// The error if an object was not found; `read` are the resources of which one would have shown it.
async fn require<K: Readable + Resource<Scope = ClusterResourceScope>>(
    sources: &Sources,
    object: String,
    name: &str,
    found: &Lookup<()>,
    read: &[Cow<'_, str>],
) -> Result<()> {
    match found {
        Lookup::Found(()) => Ok(()),
        Lookup::Unknown => Err(sources.unreadable(read)),
        Lookup::Missing => Err(PluginError::NothingSeen {
            object,
            nearest: sources.reader.nearest(sources.reader.cluster::<K>(), name).await,
        }),
    }
}

/// Whether one of several was found. What could not be read may be there.
fn any(lookups: &[Lookup<()>]) -> Lookup<()> {
    let is_found = |lookup: &Lookup<()>| matches!(lookup, Lookup::Found(()));
    if lookups.iter().any(is_found) {
        Lookup::Found(())
    } else if lookups.iter().any(Lookup::is_unknown) {
        Lookup::Unknown
    } else {
        Lookup::Missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{Answer, ApiServerFixture, attachment, list};
    use crate::cli::ObjectWord;
    use crate::error::{EXIT_ERROR, EXIT_TIMEOUT, EXIT_UNKNOWN};
    use serde_json::json;

    /// A claim of the namespace shop, and this answer to a list of VolumeAttachments.
    fn server(phase: &str, volume: Option<&str>, attachments: Answer) -> ApiServerFixture {
        let claim = json!({"metadata": {"name": "data"}, "spec": {"volumeName": volume}, "status": {"phase": phase}});
        ApiServerFixture::start(move |path, _| match path {
            "/api/v1/namespaces/shop/persistentvolumeclaims/data" => Ok(claim.clone()),
            "/apis/storage.k8s.io/v1/volumeattachments" => attachments.clone(),
            _ => Err(404),
        })
    }

    async fn wait(server: &ApiServerFixture, state: WaitFor, timeout: Duration) -> u8 {
        let context = server.context();
        let arguments = WaitArguments {
            object: Some(ObjectWord::Named(WaitKind::Pvc, "data".to_owned())),
            name: None,
            node: None,
            driver: None,
            allow_missing: false,
            state,
            timeout,
            quiet: true,
        };
        let ended = Box::pin(run(&context, &arguments)).await;
        ended.unwrap_or_else(|error| error.exit_code())
    }

    #[tokio::test]
    async fn a_claim_is_as_its_volume_is() {
        use WaitFor::{Attached, Detached};
        let of_volume = [attachment("csi-1")];
        let rows = [
            ("Pending", None, 1, Detached, EXIT_OK),
            ("Pending", None, 0, Attached, EXIT_TIMEOUT),
            ("Lost", Some("pv1"), 1, Detached, EXIT_TIMEOUT),
            ("Lost", Some("pv1"), 0, Detached, EXIT_OK),
            ("Bound", Some("pv1"), 1, Detached, EXIT_TIMEOUT),
            ("Bound", Some("pv1"), 0, Detached, EXIT_OK),
        ];
        for (phase, volume, count, state, expected) in rows {
            let server = server(phase, volume, Ok(list(&of_volume[..count])));
            let limit = Duration::from_secs(if expected == EXIT_OK { 20 } else { 1 });
            for timeout in [Duration::ZERO, limit] {
                let code = wait(&server, state, timeout).await;
                assert_eq!(code, expected, "{phase}, {volume:?}, {timeout:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_cluster_that_cannot_be_asked_is_not_waited_for() {
        for (code, expected) in [(401, EXIT_ERROR), (500, EXIT_ERROR), (403, EXIT_UNKNOWN)] {
            let server = server("Bound", Some("pv1"), Err(code));
            for timeout in [Duration::ZERO, Duration::from_secs(20)] {
                let ended = wait(&server, WaitFor::Detached, timeout).await;
                assert_eq!(ended, expected, "{code}, {timeout:?}");
            }
        }
    }

    /// Much is read of a driver and a node, and most of it does not say whether they exist.
    #[tokio::test]
    async fn the_missing_right_that_is_told_is_one_that_helps() {
        let forbidden = ["/nodes/node1", "/leases", "/csidrivers/ssd.csi.test"];
        let server = ApiServerFixture::start(move |path, _| {
            let is_forbidden = forbidden.iter().any(|end| path.ends_with(end));
            Err(if is_forbidden { 403 } else { 404 })
        });
        let (sources, target) = (server.sources(), Target::Node("node1".to_owned()));
        let error = require_driver(&sources, &target, "ssd.csi.test").await.unwrap_err();
        assert!(error.to_string().starts_with("cannot get csidrivers: "), "{error}");
        let error = require_target(&sources, &target).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot get nodes: "), "{error}");
    }

    #[test]
    fn what_could_not_be_read_may_be_there() {
        use Lookup::{Found, Missing, Unknown};
        assert!(any(&[Missing, Missing]).is_missing());
        assert!(any(&[Missing, Unknown]).is_unknown());
        assert!(matches!(any(&[Unknown, Found(())]), Found(())));
    }
}
