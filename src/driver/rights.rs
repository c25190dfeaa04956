//! The rights that an administrator has to grant for single objects, in words that can be copied into a Role or into the values
//! of the chart.

use crate::objects::SecretReference;

/// Says that a Secret may not be read, and how to let the operator read it.
pub(super) fn secret(reference: &SecretReference) -> String {
    let SecretReference { namespace, name } = reference;
    format!(
        "the operator may not get Secret {namespace}/{name}; {}",
        missing_secret(reference)
    )
}

/// The rule that is missing to read a Secret, and the value of the chart that makes it.
pub(super) fn missing_secret(reference: &SecretReference) -> String {
    let SecretReference { namespace, name } = reference;
    format!(
        "its ServiceAccount needs, by a Role in namespace {namespace}, apiGroups [\"\"], resources [secrets], resourceNames \
         [{name}], verbs [get]; the chart makes it for the value secretAccess: [{{namespace: {namespace}, names: [{name}]}}]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_and_the_value_are_complete() {
        let reference = SecretReference {
            namespace: "storage".into(),
            name: "publish".into(),
        };
        let rule =
            "Role in namespace storage, apiGroups [\"\"], resources [secrets], resourceNames [publish], verbs [get]";
        let value = "secretAccess: [{namespace: storage, names: [publish]}]";
        let text = secret(&reference);
        assert!(
            text.starts_with("the operator may not get Secret storage/publish; "),
            "{text}"
        );
        assert!(text.contains(rule) && text.contains(value), "{text}");
    }
}
