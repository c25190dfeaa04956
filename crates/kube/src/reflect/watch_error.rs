//! Why a kind of objects cannot be listed or watched, in words that say what to do about it.

use kube::Resource;
use kube::runtime::watcher;

use crate::api::AttacherConfigObject;
use crate::apiserver::ApiError;
use crate::error_chain;
use csi_attacher_model::answer::NOT_AUTHENTICATED;

/// What is said where a rule is missing.
const MISSING_RULE: &str = "the operator's ServiceAccount needs";

/// Whether what [`explain`] says is that a rule is missing.
pub fn is_missing_rule(explained: &str) -> bool {
    explained.contains(MISSING_RULE)
}

/// The error of a watch, with its fix where the API server refuses: the rule that is missing, or the credentials. A gateway may refuse in its
/// place, for which no rule and no CRD helps. `meanwhile` says what does not work until then.
pub fn explain<K: Resource<DynamicType = ()>>(error: &watcher::Error, meanwhile: &str) -> String {
    use kube::Error::Api;
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let (InitialListFailed(Api(status))
    | WatchStartFailed(Api(status))
    | WatchFailed(Api(status))
    | WatchError(status)) = error
    else {
        return error_chain::chain(error);
    };
    let answer = ApiError::of_answer(status.code, &*status.message);
    let (group, plural) = (K::group(&()), K::plural(&()));
    let error = error_chain::chain(error);
    let fix = match status.code {
        401 => NOT_AUTHENTICATED.to_owned(),
        403 if answer.is_of_authorizer() => format!(
            "{MISSING_RULE}, by a ClusterRole, apiGroups [\"{group}\"], resources [{plural}], verbs [list, watch]"
        ),
        403 => "no missing rule is named: check what is between the operator and the API server".to_owned(),
        404 if group == AttacherConfigObject::group(&()) => {
            format!("the API server does not serve {plural}.{group}: is the CRD installed?")
        }
        404 => format!(
            "the API server does not serve {plural} of {}: check its version, and what is between the operator and the API \
             server",
            K::api_version(&())
        ),
        _ => return error,
    };
    format!("{error}; {fix}; {meanwhile}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{CsiNodeWire, PersistentVolumeWire};

    const NOTHING: &str = "until then no volume is attached or detached";
    const LATE: &str = "until then its changes are seen late or not at all";

    /// As the authorizer of the API server says it.
    const NOT_ALLOWED: &str = "csinodes.storage.k8s.io is forbidden: User \"u\" cannot list resource \"csinodes\" in API group \
                               \"storage.k8s.io\" at the cluster scope";

    fn failed(code: u16, message: &str) -> watcher::Error {
        let status = kube::core::Status::failure(message, "No").with_code(code);
        watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn a_refusal_names_the_rule_and_what_does_not_work() {
        let text = explain::<CsiNodeWire>(&failed(403, NOT_ALLOWED), NOTHING);
        let rule = "apiGroups [\"storage.k8s.io\"], resources [csinodes], verbs [list, watch]";
        assert!(text.contains(rule) && is_missing_rule(&text), "{text}");
        assert!(
            text.ends_with("; until then no volume is attached or detached"),
            "{text}"
        );
        let text = explain::<PersistentVolumeWire>(&failed(403, NOT_ALLOWED), LATE);
        assert!(
            text.contains("apiGroups [\"\"], resources [persistentvolumes]"),
            "{text}"
        );
        assert!(text.ends_with("changes are seen late or not at all"), "{text}");
    }

    /// A gateway may refuse in the place of the API server. Only its authorizer says that a rule is missing, and only a kind of a CRD lacks one.
    #[test]
    fn who_else_refuses_is_no_missing_rule_and_no_missing_crd() {
        let text = explain::<PersistentVolumeWire>(&failed(403, "<html>blocked"), LATE);
        assert!(
            text.contains("check what is between") && !is_missing_rule(&text),
            "{text}"
        );
        let unserved = failed(404, "404 page not found");
        for (text, served) in [
            (
                explain::<PersistentVolumeWire>(&unserved, LATE),
                "persistentvolumes of v1: ",
            ),
            (
                explain::<CsiNodeWire>(&unserved, LATE),
                "csinodes of storage.k8s.io/v1: ",
            ),
        ] {
            let told = format!("the API server does not serve {served}check its version, and what is between");
            assert!(text.contains(&told) && !text.contains("CRD"), "{text}");
        }
        let text = explain::<AttacherConfigObject>(&unserved, LATE);
        assert!(
            text.contains("attacherconfigs.attacher.csi.dev: is the CRD installed?"),
            "{text}"
        );
    }

    #[test]
    fn who_is_not_known_lacks_no_rule_and_an_outage_needs_none() {
        let text = explain::<CsiNodeWire>(&failed(401, "no"), NOTHING);
        assert!(
            text.contains("does not accept the credentials") && !text.contains("ClusterRole"),
            "{text}"
        );
        let text = explain::<CsiNodeWire>(&failed(503, "no"), NOTHING);
        assert_eq!(text, failed(503, "no").to_string());
    }
}
