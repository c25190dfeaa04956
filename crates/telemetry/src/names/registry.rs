//! Names of spans, events, attributes and error types.
//!
//! Written from tests/trace-registry/registry.yaml by `make generate`; do not edit.

/// Schema the RPC, HTTP and container attribute names belong to.
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";

/// Span names. API server calls are named `{METHOD} {template}`.
pub mod span {
    /// Life cycle of an attach: creation of the VolumeAttachment until `attached=true` is stored. (INTERNAL)
    pub const ATTACH: &str = "VolumeAttachment.attach";
    /// One attempt to attach in which something is due. (CONSUMER)
    pub const ATTACH_ATTEMPT: &str = "VolumeAttachment.attach.attempt";
    /// Life cycle of a detach: deletion timestamp until the finalizer is removed. (INTERNAL)
    pub const DETACH: &str = "VolumeAttachment.detach";
    /// One attempt to detach in which something is due. (CONSUMER)
    pub const DETACH_ATTEMPT: &str = "VolumeAttachment.detach.attempt";
    /// Removal of the operator's finalizer from a PersistentVolume. (CONSUMER)
    pub const VOLUME_RELEASE: &str = "PersistentVolume.release";
    /// Comparison of VolumeAttachments with ListVolumes, with all pages. There is a span if there was a mismatch or an error, and else for one comparison of 60. (INTERNAL)
    pub const RECONCILE_SYNC: &str = "VolumeAttachment.reconcile_sync";
    /// The call that attaches. (CLIENT)
    pub const CONTROLLER_PUBLISH_VOLUME: &str = "csi.v1.Controller/ControllerPublishVolume";
    /// The call that detaches; in an attempt to attach, it unpublishes the volume from the node of an earlier attempt. (CLIENT)
    pub const CONTROLLER_UNPUBLISH_VOLUME: &str = "csi.v1.Controller/ControllerUnpublishVolume";
}

/// Names of events on spans.
pub mod event {
    /// A VolumeAttachment that contradicts ListVolumes; at most 32.
    pub const MISMATCH: &str = "mismatch";
}

/// Attribute keys. The type follows the meaning where it is not a string.
pub mod attr {
    /// RPC system.
    pub const RPC_SYSTEM_NAME: &str = "rpc.system.name";
    /// Full method without a leading slash: `csi.v1.Controller/ControllerPublishVolume`.
    pub const RPC_METHOD: &str = "rpc.method";
    /// gRPC status in upper snake case: `OK`, `DEADLINE_EXCEEDED`.
    pub const RPC_RESPONSE_STATUS_CODE: &str = "rpc.response.status_code";
    /// Configured target: host name or address, or the path of a unix socket.
    pub const SERVER_ADDRESS: &str = "server.address";
    /// Port of the target; a unix socket has none. (int)
    pub const SERVER_PORT: &str = "server.port";
    /// Address really connected to: IP address, or the path of a unix socket.
    pub const NETWORK_PEER_ADDRESS: &str = "network.peer.address";
    /// Port really connected to; a unix socket has none. (int)
    pub const NETWORK_PEER_PORT: &str = "network.peer.port";
    /// Class of the failure: a gRPC status, an HTTP status, or one of the [error types](super::error_type).
    pub const ERROR_TYPE: &str = "error.type";
    /// HTTP method.
    pub const HTTP_REQUEST_METHOD: &str = "http.request.method";
    /// HTTP status. (int)
    pub const HTTP_RESPONSE_STATUS_CODE: &str = "http.response.status_code";
    /// How many times the same request was sent before, from 1. (int)
    pub const HTTP_REQUEST_RESEND_COUNT: &str = "http.request.resend_count";
    /// URL without its query.
    pub const URL_FULL: &str = "url.full";
    /// Path with placeholders for names.
    pub const URL_TEMPLATE: &str = "url.template";
    /// Name of the CSI driver as reported by GetPluginInfo.
    pub const CSI_PLUGIN_NAME: &str = "container.csi.plugin.name";
    /// CSI volume handle.
    pub const CSI_VOLUME_ID: &str = "container.csi.volume.id";
    /// Name of the node the volume goes to; on the resource, that of this pod's node.
    pub const NODE_NAME: &str = "k8s.node.name";
    /// Name of the PersistentVolume.
    pub const PERSISTENT_VOLUME_NAME: &str = "k8s.persistentvolume.name";
    /// Name of the claim that the PersistentVolume is bound to.
    pub const PERSISTENT_VOLUME_CLAIM_NAME: &str = "k8s.persistentvolumeclaim.name";
    /// Namespace of that claim; on the resource, that of this pod.
    pub const NAMESPACE_NAME: &str = "k8s.namespace.name";
    /// Storage class of the PersistentVolume.
    pub const STORAGE_CLASS_NAME: &str = "k8s.storageclass.name";
    /// Name of this pod.
    pub const POD_NAME: &str = "k8s.pod.name";
    /// UID of this pod.
    pub const POD_UID: &str = "k8s.pod.uid";
    /// Name of this service.
    pub const SERVICE_NAME: &str = "service.name";
    /// Namespace of this service.
    pub const SERVICE_NAMESPACE: &str = "service.namespace";
    /// Version of this program.
    pub const SERVICE_VERSION: &str = "service.version";
    /// This replica.
    pub const SERVICE_INSTANCE_ID: &str = "service.instance.id";
    /// Name of the VolumeAttachment.
    pub const VOLUME_ATTACHMENT_NAME: &str = "k8s.volumeattachment.name";
    /// UID of the VolumeAttachment.
    pub const VOLUME_ATTACHMENT_UID: &str = "k8s.volumeattachment.uid";
    /// Attach or detach.
    pub const OPERATION: &str = "attacher.operation";
    /// How a life cycle ended; with `continued` it goes to the trace of the next epoch.
    pub const OUTCOME: &str = "attacher.outcome";
    /// Number of attempts of a life cycle. (int)
    pub const ATTEMPTS: &str = "attacher.attempts";
    /// Number of this attempt from 1. (int)
    pub const ATTEMPT: &str = "attacher.attempt";
    /// Number of this trace among the traces of one life cycle, from 0. (int)
    pub const EPOCH: &str = "attacher.epoch";
    /// Seconds from the object's time stamp until the operator first observed it. (double)
    pub const OBSERVE_LAG: &str = "attacher.observe_lag";
    /// Source of the start time of the life cycle.
    pub const START_SOURCE: &str = "attacher.start.source";
    /// Why the attempt was made.
    pub const TRIGGER: &str = "attacher.trigger";
    /// Work queue.
    pub const QUEUE_NAME: &str = "attacher.queue.name";
    /// Seconds in the queue from when the work was due. (double)
    pub const QUEUE_WAIT: &str = "attacher.queue.wait";
    /// Failures in a row before this attempt. (int)
    pub const QUEUE_RETRIES: &str = "attacher.queue.retries";
    /// Part of the wait in which the attempt was at the head of its queue and only a limit (`concurrency`) delayed it. (double)
    pub const PERMIT_WAIT: &str = "attacher.permit.wait";
    /// Seconds until the next attempt. (double)
    pub const RETRY_DELAY: &str = "attacher.retry.delay";
    /// Age in seconds of the cached VolumeAttachment or PersistentVolume with which the attempt began. (double)
    pub const INFORMER_AGE: &str = "attacher.informer.age";
    /// Deadline of the CSI call in seconds. (double)
    pub const TIMEOUT: &str = "attacher.timeout";
    /// What the attempt did with the operator's finalizer.
    pub const FINALIZER_ACTION: &str = "attacher.finalizer.action";
    /// Node ID of the driver in CSINode.
    pub const CSI_NODE_ID: &str = "attacher.csi.node_id";
    /// True when the volume is attached read-only. (bool)
    pub const READ_ONLY: &str = "attacher.read_only";
    /// CSI access mode: `SINGLE_NODE_WRITER`.
    pub const ACCESS_MODE: &str = "attacher.access_mode";
    /// File system type; none for a block volume.
    pub const VOLUME_FS_TYPE: &str = "attacher.volume.fs_type";
    /// Always true: the VolumeAttachment carries the volume itself, there is no PersistentVolume. (bool)
    pub const VOLUME_INLINE: &str = "attacher.volume.inline";
    /// Always true: the volume was translated from an in-tree source. (bool)
    pub const MIGRATED: &str = "attacher.migrated";
    /// Keys of the publish context, never the values. (string array)
    pub const PUBLISH_CONTEXT_KEYS: &str = "attacher.publish_context.keys";
    /// Number of secret entries sent, never their names. (int)
    pub const SECRETS_COUNT: &str = "attacher.secrets.count";
    /// Kubernetes verb.
    pub const K8S_VERB: &str = "attacher.k8s.verb";
    /// Kubernetes resource: `volumeattachments/status`.
    pub const K8S_RESOURCE: &str = "attacher.k8s.resource";
    /// Seconds that a client-side limit delayed the request. (double)
    pub const K8S_LIMIT_WAIT: &str = "attacher.k8s.limit_wait";
    /// Pages of ListVolumes that were read. (int)
    pub const SYNC_PAGES: &str = "attacher.sync.pages";
    /// Volumes that the driver listed. (int)
    pub const SYNC_VOLUMES: &str = "attacher.sync.volumes";
    /// VolumeAttachments that were compared. (int)
    pub const SYNC_ATTACHMENTS: &str = "attacher.sync.attachments";
    /// VolumeAttachments that contradict ListVolumes. (int)
    pub const SYNC_MISMATCHES: &str = "attacher.sync.mismatches";
    /// VolumeAttachments that could not be compared, for example because an attempt is due. (int)
    pub const SYNC_SKIPPED: &str = "attacher.sync.skipped";
    /// Name of the VolumeAttachment.
    pub const MISMATCH_VA: &str = "va";
    /// What the VolumeAttachment says.
    pub const MISMATCH_EXPECTED: &str = "expected";
    /// What the driver lists.
    pub const MISMATCH_ACTUAL: &str = "actual";
}

/// Values of `error.type` for failures that are neither RPC nor HTTP statuses.
pub mod error_type {
    /// The PersistentVolume does not exist.
    pub const PV_NOT_FOUND: &str = "pv_not_found";
    /// The PersistentVolume is being deleted.
    pub const PV_DELETING: &str = "pv_deleting";
    /// The PersistentVolume was created again under its name, and is not the volume that was claimed.
    pub const VOLUME_UNKNOWN: &str = "volume_unknown";
    /// The PersistentVolume or CSINode can be neither watched nor read.
    pub const UNCONFIRMED: &str = "unconfirmed";
    /// The node has no CSINode entry for the driver.
    pub const CSINODE_MISSING: &str = "csinode_missing";
    /// The publish secret does not exist.
    pub const SECRET_MISSING: &str = "secret_missing";
    /// The operator has no permission to read the publish secret.
    pub const SECRET_FORBIDDEN: &str = "secret_forbidden";
    /// The AttacherConfig does not list the publish secret.
    pub const SECRET_NOT_ALLOWED: &str = "secret_not_allowed";
    /// Another VolumeAttachment needs the volume on that node.
    pub const VOLUME_SHARED: &str = "volume_shared";
    /// The driver does not announce PUBLISH_UNPUBLISH_VOLUME any more.
    pub const CAPABILITY_LOST: &str = "capability_lost";
    /// The AttacherConfig is being deleted and attaches no further volumes.
    pub const CONFIG_DELETING: &str = "config_deleting";
    /// Another client wrote the object first.
    pub const CONFLICT: &str = "conflict";
    /// The object's spec is invalid.
    pub const INVALID_SPEC: &str = "invalid_spec";
    /// The driver does not answer at its endpoint.
    pub const DRIVER_UNAVAILABLE: &str = "driver_unavailable";
    /// This process is stopping.
    pub const SHUTDOWN: &str = "shutdown";
    /// Anything else.
    pub const OTHER: &str = "_OTHER";
}
