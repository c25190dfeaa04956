//! Names of spans and attributes, and the two spellings of a gRPC status code.
//!
//! The names follow the OpenTelemetry semantic conventions (schema [`SCHEMA_URL`]) where those have one; everything
//! else carries the `attacher.` prefix, because an application may not extend a namespace of the conventions.
//! This module holds constants and pure functions only.

use tonic::Code;

/// Schema the RPC, HTTP and container attribute names belong to.
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";
/// Name of the instrumentation scope of every span of this program, and the default `service.name`.
pub const SERVICE_NAME: &str = "csi-attacher-operator";

/// Span names. CSI calls use the full method ([`csi_method`]), API server calls `{METHOD} {template}`.
pub mod span {
    /// Life cycle of an attach: creation of the VolumeAttachment until `attached=true` is stored (INTERNAL).
    pub const ATTACH: &str = "VolumeAttachment.attach";
    /// One attempt to attach (CONSUMER).
    pub const ATTACH_ATTEMPT: &str = "VolumeAttachment.attach.attempt";
    /// Life cycle of a detach: deletion timestamp until the finalizer is gone (INTERNAL).
    pub const DETACH: &str = "VolumeAttachment.detach";
    /// One attempt to detach (CONSUMER).
    pub const DETACH_ATTEMPT: &str = "VolumeAttachment.detach.attempt";
    /// Comparison of the stored state with the driver's ListVolumes (INTERNAL).
    pub const RECONCILE_SYNC: &str = "VolumeAttachment.reconcile_sync";
    /// Reconciliation of one AttacherConfig generation (CONSUMER).
    pub const CONFIG_RECONCILE: &str = "AttacherConfig.reconcile";
    /// Removal of our finalizer from a PersistentVolume (CONSUMER).
    pub const VOLUME_RELEASE: &str = "PersistentVolume.release";
}

/// Attribute keys. The type follows the name where it is not a string.
pub mod attr {
    /// RPC system, always [`super::RPC_SYSTEM_GRPC`] here.
    pub const RPC_SYSTEM_NAME: &str = "rpc.system.name";
    /// Full method without a leading slash: `csi.v1.Controller/ControllerPublishVolume`.
    pub const RPC_METHOD: &str = "rpc.method";
    /// gRPC status in upper snake case ([`super::code_upper_snake`]).
    pub const RPC_RESPONSE_STATUS_CODE: &str = "rpc.response.status_code";
    /// Configured target: the socket path for a unix socket.
    pub const SERVER_ADDRESS: &str = "server.address";
    /// Port of the target (int); absent for a unix socket.
    pub const SERVER_PORT: &str = "server.port";
    /// Address really connected to: the socket path for a unix socket.
    pub const NETWORK_PEER_ADDRESS: &str = "network.peer.address";
    /// Class of the failure; present only on failure.
    pub const ERROR_TYPE: &str = "error.type";
    /// HTTP method of an API server call.
    pub const HTTP_REQUEST_METHOD: &str = "http.request.method";
    /// HTTP status of an API server call (int).
    pub const HTTP_RESPONSE_STATUS_CODE: &str = "http.response.status_code";
    /// Number of re-sends of an HTTP request (int).
    pub const HTTP_REQUEST_RESEND_COUNT: &str = "http.request.resend_count";
    /// Full URL without query values.
    pub const URL_FULL: &str = "url.full";
    /// Low-cardinality path template.
    pub const URL_TEMPLATE: &str = "url.template";
    /// CSI driver name as GetPluginInfo tells it.
    pub const CSI_PLUGIN_NAME: &str = "container.csi.plugin.name";
    /// CSI volume handle.
    pub const CSI_VOLUME_ID: &str = "container.csi.volume.id";
    /// Name of the VolumeAttachment.
    pub const VOLUME_ATTACHMENT_NAME: &str = "k8s.volumeattachment.name";
    /// UID of the VolumeAttachment.
    pub const VOLUME_ATTACHMENT_UID: &str = "k8s.volumeattachment.uid";
    /// Name of the node.
    pub const NODE_NAME: &str = "k8s.node.name";
    /// Name of the PersistentVolume.
    pub const PERSISTENT_VOLUME_NAME: &str = "k8s.persistentvolume.name";
    /// Name of the claim bound to the PersistentVolume.
    pub const PERSISTENT_VOLUME_CLAIM_NAME: &str = "k8s.persistentvolumeclaim.name";
    /// Namespace of the claim, or of this pod on the resource.
    pub const NAMESPACE_NAME: &str = "k8s.namespace.name";
    /// Storage class of the PersistentVolume.
    pub const STORAGE_CLASS_NAME: &str = "k8s.storageclass.name";
    /// Name of this pod (resource).
    pub const POD_NAME: &str = "k8s.pod.name";
    /// UID of this pod (resource).
    pub const POD_UID: &str = "k8s.pod.uid";
    /// Name of this service (resource).
    pub const SERVICE_NAME: &str = "service.name";
    /// Namespace of this service (resource).
    pub const SERVICE_NAMESPACE: &str = "service.namespace";
    /// Version of this service (resource).
    pub const SERVICE_VERSION: &str = "service.version";
    /// Instance of this service (resource).
    pub const SERVICE_INSTANCE_ID: &str = "service.instance.id";

    /// `attach` or `detach`.
    pub const OPERATION: &str = "attacher.operation";
    /// `succeeded`, `aborted` or `continued`.
    pub const OUTCOME: &str = "attacher.outcome";
    /// Attempts a life cycle took (int).
    pub const ATTEMPTS: &str = "attacher.attempts";
    /// Number of this attempt from 1 (int).
    pub const ATTEMPT: &str = "attacher.attempt";
    /// Epoch of a life cycle trace (int).
    pub const EPOCH: &str = "attacher.epoch";
    /// Time from the object's time stamp to our first sight of it (double, s).
    pub const OBSERVE_LAG: &str = "attacher.observe_lag";
    /// `creation` or `observed`: what the start of a life cycle was taken from.
    pub const START_SOURCE: &str = "attacher.start.source";
    /// Why an attempt ran: add, update, delete, retry, resync, force_sync, config or pv.
    pub const TRIGGER: &str = "attacher.trigger";
    /// Name of the work queue.
    pub const QUEUE_NAME: &str = "attacher.queue.name";
    /// Time spent in the queue (double, s).
    pub const QUEUE_WAIT: &str = "attacher.queue.wait";
    /// Failures in a row before this attempt (int).
    pub const QUEUE_RETRIES: &str = "attacher.queue.retries";
    /// Time spent waiting for a concurrency permit (double, s).
    pub const PERMIT_WAIT: &str = "attacher.permit.wait";
    /// Delay until the next attempt (double, s); failed attempts only.
    pub const RETRY_DELAY: &str = "attacher.retry.delay";
    /// Age of the cached object (double, s).
    pub const INFORMER_AGE: &str = "attacher.informer.age";
    /// Deadline of the CSI call (double, s).
    pub const TIMEOUT: &str = "attacher.timeout";
    /// `added`, `present` or `removed`.
    pub const FINALIZER_ACTION: &str = "attacher.finalizer.action";
    /// Node id the driver gave itself in CSINode.
    pub const CSI_NODE_ID: &str = "attacher.csi.node_id";
    /// Whether the volume is attached read-only (bool).
    pub const READ_ONLY: &str = "attacher.read_only";
    /// CSI access mode.
    pub const ACCESS_MODE: &str = "attacher.access_mode";
    /// File system type of the volume.
    pub const VOLUME_FS_TYPE: &str = "attacher.volume.fs_type";
    /// Whether the volume spec was inline (bool).
    pub const VOLUME_INLINE: &str = "attacher.volume.inline";
    /// Whether the volume was translated from an in-tree source (bool).
    pub const MIGRATED: &str = "attacher.migrated";
    /// Keys of the publish context, never the values (string array).
    pub const PUBLISH_CONTEXT_KEYS: &str = "attacher.publish_context.keys";
    /// Number of secret entries sent, never their names (int).
    pub const SECRETS_COUNT: &str = "attacher.secrets.count";
    /// Index of a ListVolumes page from 0 (int).
    pub const PAGE_INDEX: &str = "attacher.page.index";
    /// Entries of a ListVolumes page (int).
    pub const PAGE_ENTRIES: &str = "attacher.page.entries";
    /// Whether this is the last ListVolumes page (bool).
    pub const PAGE_LAST: &str = "attacher.page.last";
    /// Kubernetes verb of an API server call.
    pub const K8S_VERB: &str = "attacher.k8s.verb";
    /// Resource of an API server call.
    pub const K8S_RESOURCE: &str = "attacher.k8s.resource";
    /// Time that an API server call waited for a limit of our own (double, s); absent without one.
    pub const K8S_LIMIT_WAIT: &str = "attacher.k8s.limit_wait";
    /// ListVolumes pages read by a sync (int).
    pub const SYNC_PAGES: &str = "attacher.sync.pages";
    /// Volumes the driver listed in a sync (int).
    pub const SYNC_VOLUMES: &str = "attacher.sync.volumes";
    /// VolumeAttachments compared in a sync (int).
    pub const SYNC_ATTACHMENTS: &str = "attacher.sync.attachments";
    /// Differences a sync found (int).
    pub const SYNC_MISMATCHES: &str = "attacher.sync.mismatches";
    /// VolumeAttachments a sync left out (int).
    pub const SYNC_SKIPPED: &str = "attacher.sync.skipped";
    /// Name of the AttacherConfig.
    pub const CONFIG_NAME: &str = "attacher.config.name";
    /// Generation of the AttacherConfig (int).
    pub const CONFIG_GENERATION: &str = "attacher.config.generation";
    /// `added`, `updated`, `removed` or `unchanged`.
    pub const CONFIG_CHANGE: &str = "attacher.config.change";
    /// Drivers started by a configuration (int).
    pub const DRIVERS_STARTED: &str = "attacher.drivers.started";
    /// Drivers stopped by a configuration (int).
    pub const DRIVERS_STOPPED: &str = "attacher.drivers.stopped";
    /// Drivers restarted by a configuration (int).
    pub const DRIVERS_RESTARTED: &str = "attacher.drivers.restarted";
}

/// Values of `error.type` for failures that are neither RPC nor HTTP statuses.
pub mod error_type {
    /// The PersistentVolume does not exist.
    pub const PV_NOT_FOUND: &str = "pv_not_found";
    /// The PersistentVolume is being deleted.
    pub const PV_DELETING: &str = "pv_deleting";
    /// The node has no CSINode entry for the driver.
    pub const CSINODE_MISSING: &str = "csinode_missing";
    /// The publish secret does not exist.
    pub const SECRET_MISSING: &str = "secret_missing";
    /// The publish secret may not be read.
    pub const SECRET_FORBIDDEN: &str = "secret_forbidden";
    /// Another writer was first.
    pub const CONFLICT: &str = "conflict";
    /// The object's spec cannot be used.
    pub const INVALID_SPEC: &str = "invalid_spec";
    /// The driver's socket is not there.
    pub const DRIVER_UNAVAILABLE: &str = "driver_unavailable";
    /// This process is stopping.
    pub const SHUTDOWN: &str = "shutdown";
    /// Anything else.
    pub const OTHER: &str = "_OTHER";
}

/// Value of [`attr::RPC_SYSTEM_NAME`].
pub const RPC_SYSTEM_GRPC: &str = "grpc";
/// Name of the VolumeAttachment work queue, as the incumbent's dashboards know it.
pub const QUEUE_VOLUME_ATTACHMENT: &str = "csi-attacher-va";
/// Name of the PersistentVolume work queue, as the incumbent's dashboards know it.
pub const QUEUE_PERSISTENT_VOLUME: &str = "csi-attacher-pv";

/// The span form of a gRPC path: without the leading slash (`csi.v1.Controller/ControllerPublishVolume`).
pub fn csi_method(path: &str) -> &str {
    path.strip_prefix('/').unwrap_or(path)
}

/// Text of a gRPC status code for spans, as the gRPC specification spells it (`DEADLINE_EXCEEDED`).
pub const fn code_upper_snake(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Text of a gRPC status code for metrics and messages, as grpc-go spells it (`DeadlineExceeded`, `Canceled`), so that
/// dashboards written for the Go sidecars keep working.
pub const fn code_camel_case(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_every_code_name_the_same_code() {
        for number in 0..=16 {
            let code = Code::from_i32(number);
            let folded = code_upper_snake(code).replace('_', "").to_lowercase();
            let camel = code_camel_case(code).to_lowercase();
            if code == Code::Cancelled {
                assert_eq!((folded.as_str(), camel.as_str()), ("cancelled", "canceled"));
            } else {
                assert_eq!(folded, camel);
            }
        }
        assert_eq!(code_upper_snake(Code::DeadlineExceeded), "DEADLINE_EXCEEDED");
        assert_eq!(code_camel_case(Code::Ok), "OK");
    }

    #[test]
    fn span_method_has_no_leading_slash() {
        assert_eq!(csi_method("/csi.v1.Identity/Probe"), "csi.v1.Identity/Probe");
        assert_eq!(csi_method("csi.v1.Identity/Probe"), "csi.v1.Identity/Probe");
    }
}
