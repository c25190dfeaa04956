//! Names of spans, events, attributes and error types.
//!
//! Written from tests/trace-registry/registry.yaml by `make generate`; do not edit. docs/reference/TRACES.md, written from the
//! same file, says what each name means.

#![allow(missing_docs, reason = "see docs/reference/TRACES.md")]

/// Schema the RPC, HTTP and container attribute names belong to.
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";

/// Span names. API server calls are named `{METHOD} {template}`, calls of a driver as their method.
pub mod span {
    pub const ATTACH: &str = "VolumeAttachment.attach";
    pub const ATTACH_ATTEMPT: &str = "VolumeAttachment.attach.attempt";
    pub const DETACH: &str = "VolumeAttachment.detach";
    pub const DETACH_ATTEMPT: &str = "VolumeAttachment.detach.attempt";
    pub const VOLUME_RELEASE: &str = "PersistentVolume.release";
    pub const RECONCILE_SYNC: &str = "VolumeAttachment.reconcile_sync";
    pub const PROVISION: &str = "PersistentVolumeClaim.provision";
    pub const PROVISION_ATTEMPT: &str = "PersistentVolumeClaim.provision.attempt";
    pub const DELETE: &str = "PersistentVolume.delete";
    pub const DELETE_ATTEMPT: &str = "PersistentVolume.delete.attempt";
}

/// Names of events on spans.
pub mod event {
    pub const MISMATCH: &str = "mismatch";
}

/// Attribute keys.
pub mod attr {
    pub const RPC_SYSTEM_NAME: &str = "rpc.system.name";
    pub const RPC_METHOD: &str = "rpc.method";
    pub const RPC_RESPONSE_STATUS_CODE: &str = "rpc.response.status_code";
    pub const SERVER_ADDRESS: &str = "server.address";
    pub const SERVER_PORT: &str = "server.port";
    pub const NETWORK_PEER_ADDRESS: &str = "network.peer.address";
    pub const NETWORK_PEER_PORT: &str = "network.peer.port";
    pub const ERROR_TYPE: &str = "error.type";
    pub const HTTP_REQUEST_METHOD: &str = "http.request.method";
    pub const HTTP_RESPONSE_STATUS_CODE: &str = "http.response.status_code";
    pub const HTTP_REQUEST_RESEND_COUNT: &str = "http.request.resend_count";
    pub const URL_FULL: &str = "url.full";
    pub const URL_TEMPLATE: &str = "url.template";
    pub const CSI_PLUGIN_NAME: &str = "container.csi.plugin.name";
    pub const CSI_VOLUME_ID: &str = "container.csi.volume.id";
    pub const NODE_NAME: &str = "k8s.node.name";
    pub const PERSISTENT_VOLUME_NAME: &str = "k8s.persistentvolume.name";
    pub const PERSISTENT_VOLUME_CLAIM_NAME: &str = "k8s.persistentvolumeclaim.name";
    pub const PERSISTENT_VOLUME_CLAIM_UID: &str = "k8s.persistentvolumeclaim.uid";
    pub const NAMESPACE_NAME: &str = "k8s.namespace.name";
    pub const STORAGE_CLASS_NAME: &str = "k8s.storageclass.name";
    pub const POD_NAME: &str = "k8s.pod.name";
    pub const POD_UID: &str = "k8s.pod.uid";
    pub const SERVICE_NAME: &str = "service.name";
    pub const SERVICE_NAMESPACE: &str = "service.namespace";
    pub const SERVICE_VERSION: &str = "service.version";
    pub const SERVICE_INSTANCE_ID: &str = "service.instance.id";
    pub const VOLUME_ATTACHMENT_NAME: &str = "k8s.volumeattachment.name";
    pub const VOLUME_ATTACHMENT_UID: &str = "k8s.volumeattachment.uid";
    pub const OPERATION: &str = "attacher.operation";
    pub const OUTCOME: &str = "attacher.outcome";
    pub const ATTEMPTS: &str = "attacher.attempts";
    pub const ATTEMPT: &str = "attacher.attempt";
    pub const EPOCH: &str = "attacher.epoch";
    pub const OBSERVE_LAG: &str = "attacher.observe_lag";
    pub const START_SOURCE: &str = "attacher.start.source";
    pub const TRIGGER: &str = "attacher.trigger";
    pub const QUEUE_NAME: &str = "attacher.queue.name";
    pub const QUEUE_WAIT: &str = "attacher.queue.wait";
    pub const QUEUE_RETRIES: &str = "attacher.queue.retries";
    pub const PERMIT_WAIT: &str = "attacher.permit.wait";
    pub const RETRY_DELAY: &str = "attacher.retry.delay";
    pub const INFORMER_AGE: &str = "attacher.informer.age";
    pub const TIMEOUT: &str = "attacher.timeout";
    pub const FINALIZER_ACTION: &str = "attacher.finalizer.action";
    pub const CSI_NODE_ID: &str = "attacher.csi.node_id";
    pub const READ_ONLY: &str = "attacher.read_only";
    pub const ACCESS_MODE: &str = "attacher.access_mode";
    pub const VOLUME_FS_TYPE: &str = "attacher.volume.fs_type";
    pub const VOLUME_INLINE: &str = "attacher.volume.inline";
    pub const MIGRATED: &str = "attacher.migrated";
    pub const VOLUME_REQUESTED_BYTES: &str = "attacher.volume.requested_bytes";
    pub const VOLUME_CAPACITY_BYTES: &str = "attacher.volume.capacity_bytes";
    pub const TOPOLOGY_MODE: &str = "attacher.topology.mode";
    pub const TOPOLOGY_REQUISITE: &str = "attacher.topology.requisite";
    pub const TOPOLOGY_FIRST: &str = "attacher.topology.first";
    pub const CREATION: &str = "attacher.creation";
    pub const PUBLISH_CONTEXT_KEYS: &str = "attacher.publish_context.keys";
    pub const SECRETS_COUNT: &str = "attacher.secrets.count";
    pub const K8S_VERB: &str = "attacher.k8s.verb";
    pub const K8S_RESOURCE: &str = "attacher.k8s.resource";
    pub const K8S_LIMIT_WAIT: &str = "attacher.k8s.limit_wait";
    pub const SYNC_PAGES: &str = "attacher.sync.pages";
    pub const SYNC_VOLUMES: &str = "attacher.sync.volumes";
    pub const SYNC_ATTACHMENTS: &str = "attacher.sync.attachments";
    pub const SYNC_MISMATCHES: &str = "attacher.sync.mismatches";
    pub const SYNC_SKIPPED: &str = "attacher.sync.skipped";
    pub const MISMATCH_VA: &str = "va";
    pub const MISMATCH_EXPECTED: &str = "expected";
    pub const MISMATCH_ACTUAL: &str = "actual";
}

/// Values of `error.type` for failures that are neither RPC nor HTTP statuses.
pub mod error_type {
    pub const PV_NOT_FOUND: &str = "pv_not_found";
    pub const PV_DELETING: &str = "pv_deleting";
    pub const VOLUME_UNKNOWN: &str = "volume_unknown";
    pub const UNCONFIRMED: &str = "unconfirmed";
    pub const CSINODE_MISSING: &str = "csinode_missing";
    pub const SECRET_MISSING: &str = "secret_missing";
    pub const SECRET_FORBIDDEN: &str = "secret_forbidden";
    pub const SECRET_NOT_ALLOWED: &str = "secret_not_allowed";
    pub const VOLUME_SHARED: &str = "volume_shared";
    pub const CAPABILITY_LOST: &str = "capability_lost";
    pub const CONFIG_DELETING: &str = "config_deleting";
    pub const CLASS_MISSING: &str = "class_missing";
    pub const CLASS_MISMATCH: &str = "class_mismatch";
    pub const CLASS_REPLACED: &str = "class_replaced";
    pub const INVALID_CLASS: &str = "invalid_class";
    pub const INVALID_CLAIM: &str = "invalid_claim";
    pub const NOT_SUPPORTED: &str = "not_supported";
    pub const CAPABILITY_MISSING: &str = "capability_missing";
    pub const TOPOLOGY_MISSING: &str = "topology_missing";
    pub const NAME_TAKEN: &str = "name_taken";
    pub const HANDLE_SHARED: &str = "handle_shared";
    pub const MARKER_OF_ANOTHER_DRIVER: &str = "marker_of_another_driver";
    pub const DELETION_HELD: &str = "deletion_held";
    pub const STILL_ATTACHED: &str = "still_attached";
    pub const VOLUME_UNRECORDED: &str = "volume_unrecorded";
    pub const PV_REFUSED: &str = "pv_refused";
    pub const INVALID_ANSWER: &str = "invalid_answer";
    pub const CONFLICT: &str = "conflict";
    pub const INVALID_SPEC: &str = "invalid_spec";
    pub const DRIVER_UNAVAILABLE: &str = "driver_unavailable";
    pub const SHUTDOWN: &str = "shutdown";
    pub const OTHER: &str = "_OTHER";
}
