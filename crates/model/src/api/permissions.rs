//! The permissions that an administrator has to grant for single objects, as texts that can be copied into a Role or into the
//! values of the chart.

use super::{is_label, is_subdomain};
use crate::objects::SecretReference;

/// Words of YAML 1.1 that are a boolean or nothing. The API server and Helm read YAML so.
const NOT_NAMES: [&str; 9] = ["y", "yes", "n", "no", "true", "false", "on", "off", "null"];

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
    format!(
        "{}; the chart creates it for publishSecrets: [{}] in its value drivers.NAME.config or attacherConfigs.NAME",
        rule(reference),
        secret_entry(reference)
    )
}

/// The entry of a list of Secrets in an AttacherConfig that allows this one.
pub fn secret_entry(reference: &SecretReference) -> String {
    let (namespace, name) = in_yaml(reference);
    format!("{{namespace: {namespace}, names: [{name}]}}")
}

fn forbidden(reference: &SecretReference) -> String {
    let SecretReference { namespace, name } = reference;
    format!("the operator has no permission to get Secret {namespace}/{name}")
}

fn rule(reference: &SecretReference) -> String {
    let (namespace, name) = in_yaml(reference);
    format!(
        "its ServiceAccount needs, by a Role in namespace {namespace}, apiGroups [\"\"], resources [secrets], resourceNames \
         [{name}], verbs [get]"
    )
}

/// Namespace and name as YAML takes them for these strings. What cannot be one, as in an annotation that anybody wrote, is none that
/// could be granted, and a person has to fill it in.
fn in_yaml(reference: &SecretReference) -> (String, String) {
    let SecretReference { namespace, name } = reference;
    (
        yaml_word(namespace, namespace.len() <= 63 && is_label(namespace), "NAMESPACE"),
        yaml_word(name, name.len() <= 253 && is_subdomain(name), "NAME"),
    )
}

fn yaml_word(word: &str, is_name: bool, placeholder: &str) -> String {
    let is_plain = word.starts_with(|first: char| first.is_ascii_lowercase()) && !NOT_NAMES.contains(&word);
    match (is_name, is_plain) {
        (false, _) => placeholder.to_owned(),
        (true, true) => word.to_owned(),
        (true, false) => format!("\"{word}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is pasted is read as YAML 1.1, where `on` is a boolean, and whoever writes a PersistentVolume names the Secret.
    #[test]
    fn an_entry_has_these_names_as_strings_and_nothing_else() {
        for (namespace, name, entry) in [
            ("storage", "publish-1.x", "{namespace: storage, names: [publish-1.x]}"),
            ("on", "1e3", "{namespace: \"on\", names: [\"1e3\"]}"),
            ("012", "null", "{namespace: \"012\", names: [\"null\"]}"),
            ("y", "0x1f", "{namespace: \"y\", names: [\"0x1f\"]}"),
            (
                "x, names: [a]}, {namespace: kube-system",
                "a]",
                "{namespace: NAMESPACE, names: [NAME]}",
            ),
            ("a.b", "", "{namespace: NAMESPACE, names: [NAME]}"),
        ] {
            let reference = SecretReference {
                namespace: namespace.into(),
                name: name.into(),
            };
            assert_eq!(secret_entry(&reference), entry);
            let role = required_role(&reference);
            let (namespace, names) = entry.split_once(", names: ").unwrap();
            let namespace = namespace.trim_start_matches("{namespace: ");
            let names = names.trim_end_matches('}');
            for part in [
                format!("publishSecrets: [{entry}]"),
                format!("Role in namespace {namespace}, "),
                format!("resourceNames {names}, "),
            ] {
                assert!(role.contains(&part), "{part}: {role}");
            }
        }
    }

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
