//! Why a kind of objects cannot be listed or watched, in words that say what to do about it.

use kube::Resource;
use kube::runtime::watcher;

use crate::error_chain;

/// What is said where a rule is missing.
const MISSING_RULE: &str = "the operator's ServiceAccount needs";

/// Whether what [`explain`] says is that a rule is missing.
pub fn is_missing_rule(explained: &str) -> bool {
    explained.contains(MISSING_RULE)
}

/// The error of a watch, with its fix where the API server refuses: the rule that is missing, or the credentials.
/// `meanwhile` says what does not work until then.
pub fn explain<K: Resource<DynamicType = ()>>(error: &watcher::Error, meanwhile: &str) -> String {
    use kube::Error::Api;
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let code = match error {
        InitialListFailed(Api(status))
        | WatchStartFailed(Api(status))
        | WatchFailed(Api(status))
        | WatchError(status) => status.code,
        _ => 0,
    };
    let (group, plural) = (K::group(&()), K::plural(&()));
    let error = error_chain::chain(error);
    match code {
        401 => format!(
            "{error}; the API server does not accept the credentials of the operator: check its ServiceAccount token or kubeconfig; \
             {meanwhile}"
        ),
        403 => format!(
            "{error}; {MISSING_RULE}, by a ClusterRole, apiGroups [\"{group}\"], resources [{plural}], verbs \
             [list, watch]; {meanwhile}"
        ),
        404 => format!("{error}; the API server does not serve {plural}.{group}: is the CRD installed?; {meanwhile}"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{CsiNodeWire, PersistentVolumeWire};

    const NOTHING: &str = "until then no volume is attached or detached";
    const LATE: &str = "until then its changes are seen late or not at all";

    fn failed(code: u16) -> watcher::Error {
        let status = kube::core::Status::failure("no", "No").with_code(code);
        watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn a_refusal_names_the_rule_and_what_does_not_work() {
        let text = explain::<CsiNodeWire>(&failed(403), NOTHING);
        let rule = "apiGroups [\"storage.k8s.io\"], resources [csinodes], verbs [list, watch]";
        assert!(text.contains(rule), "{text}");
        assert!(
            text.ends_with("; until then no volume is attached or detached"),
            "{text}"
        );
        let text = explain::<PersistentVolumeWire>(&failed(403), LATE);
        assert!(
            text.contains("apiGroups [\"\"], resources [persistentvolumes]"),
            "{text}"
        );
        assert!(text.ends_with("changes are seen late or not at all"), "{text}");
    }

    #[test]
    fn who_is_not_known_lacks_no_rule_and_an_outage_needs_none() {
        let text = explain::<CsiNodeWire>(&failed(401), NOTHING);
        assert!(
            text.contains("does not accept the credentials") && !text.contains("ClusterRole"),
            "{text}"
        );
        let text = explain::<CsiNodeWire>(&failed(503), NOTHING);
        assert_eq!(text, failed(503).to_string());
    }
}
