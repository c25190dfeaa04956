//! Feature gates: those that csi-attacher knows are accepted, and every other name is refused as csi-attacher refuses it.
//!
//! A name that csi-attacher does not know says that these are the arguments of another sidecar, of csi-provisioner above all. Its
//! container would run a second attacher of the driver, and nothing would provision.

/// Gates of csi-attacher itself, and the two that stand for groups of gates.
const OF_THE_SIDECAR: [&str; 4] = [
    "AllAlpha",
    "AllBeta",
    "MutableCSINodeAllocatableCount",
    "ReleaseLeaderElectionOnExit",
];

/// Gates of the libraries of Kubernetes, which csi-attacher v4.12 accepts without effect.
const GENERIC: [&str; 45] = [
    "APIResponseCompression",
    "APIServerIdentity",
    "APIServerTracing",
    "APIServingWithRoutine",
    "AggregatedDiscoveryRemoveBetaType",
    "AllowParsingUserUIDFromCertAuth",
    "AllowUnsafeMalformedObjectDeletion",
    "AnonymousAuthConfigurableEndpoints",
    "AuthorizeWithSelectors",
    "BtreeWatchCache",
    "CBORServingAndStorage",
    "ComponentFlagz",
    "ComponentStatusz",
    "ConcurrentWatchObjectDecode",
    "ConsistentListFromCache",
    "ConstrainedImpersonation",
    "CoordinatedLeaderElection",
    "DeclarativeValidation",
    "DeclarativeValidationBeta",
    "DeclarativeValidationTakeover",
    "DetectCacheInconsistency",
    "KMSv1",
    "ListFromCacheSnapshot",
    "ManifestBasedAdmissionControlConfig",
    "MutatingAdmissionPolicy",
    "NativeHistograms",
    "OpenAPIEnums",
    "RemoteRequestHeaderUID",
    "ResilientWatchCacheInitialization",
    "RetryGenerateName",
    "SeparateCacheWatchRPC",
    "ShardedListAndWatch",
    "SizeBasedListCostEstimate",
    "StorageVersionAPI",
    "StorageVersionHash",
    "StreamingCollectionEncodingToJSON",
    "StreamingCollectionEncodingToProtobuf",
    "StructuredAuthenticationConfiguration",
    "StructuredAuthenticationConfigurationEgressSelector",
    "StructuredAuthenticationConfigurationJWKSMetrics",
    "TokenRequestServiceAccountUIDValidation",
    "UnauthenticatedHTTP2DOSMitigation",
    "UnknownVersionInteroperabilityProxy",
    "WatchCacheInitializationPostStartHook",
    "WatchList",
];

/// Whether csi-attacher accepts a gate of this name.
pub(super) fn is_known(name: &str) -> bool {
    OF_THE_SIDECAR.contains(&name) || GENERIC.contains(&name)
}
