//! The permissions that an administrator has to grant for single objects, as texts that can be copied into a Role or into the
//! values of the chart.

use crate::objects::SecretReference;

/// Says that a publish secret may not be read, and how to let the operator read it.
pub fn forbidden_secret_message(reference: &SecretReference) -> String {
    format!("{}; {}", forbidden(reference), required_role(reference))
}

/// The same of the Secret with the certificates of a connection.
pub fn certificates(reference: &SecretReference) -> String {
    format!(
        "{}; {}; the chart creates it for the tls of an AttacherConfig that is in its values",
        forbidden(reference),
        rule(reference)
    )
}

/// The rule that is missing to read a publish secret, and the value of the chart that makes it.
pub fn required_role(reference: &SecretReference) -> String {
    let SecretReference { namespace, name } = reference;
    format!(
        "{}; the chart creates it for publishSecrets: [{{namespace: {namespace}, names: [{name}]}}] in its value \
         drivers.NAME.config or attacherConfigs.NAME",
        rule(reference)
    )
}

fn forbidden(reference: &SecretReference) -> String {
    let SecretReference { namespace, name } = reference;
    format!("the operator has no permission to get Secret {namespace}/{name}")
}

fn rule(reference: &SecretReference) -> String {
    let SecretReference { namespace, name } = reference;
    format!(
        "its ServiceAccount needs, by a Role in namespace {namespace}, apiGroups [\"\"], resources [secrets], resourceNames \
         [{name}], verbs [get]"
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
        let value = "publishSecrets: [{namespace: storage, names: [publish]}]";
        for (text, value) in [
            (forbidden_secret_message(&reference), value),
            (certificates(&reference), "tls"),
        ] {
            assert!(
                text.starts_with("the operator has no permission to get Secret storage/publish; "),
                "{text}"
            );
            assert!(text.contains(rule) && text.contains(value), "{text}");
        }
    }
}
