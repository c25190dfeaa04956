//! docs/reference/METRICS.md names exactly the families that there are.

use std::collections::BTreeMap;

use crate::support::prometheus::of_repository;

/// Every family of the exposition has a row with its type and its labels, and every row is a family.
pub fn match_the_exposition(classic: &str) {
    let documented = documented();
    let exposed = exposed(classic);
    for (name, (kind, labels)) in &exposed {
        let Some((told, named)) = documented.get(name) else {
            panic!("docs/reference/METRICS.md does not have {name} ({kind}; {labels:?})");
        };
        assert_eq!(told, kind, "type of {name}");
        for label in labels {
            assert!(
                named.contains(label),
                "docs/reference/METRICS.md does not name the label {label} of {name}"
            );
        }
    }
    for name in documented.keys() {
        let known = exposed.contains_key(name);
        assert!(
            known,
            "docs/reference/METRICS.md has {name}, which the operator does not show"
        );
    }
}

type Families = BTreeMap<String, (String, Vec<String>)>;

/// Rows of the tables: name, type, labels, meaning, source.
fn documented() -> Families {
    let text = std::fs::read_to_string(of_repository("docs/reference/METRICS.md")).unwrap();
    let mut found = Families::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 5, "{line}");
        assert!(
            [
                "csi-lib-utils",
                "client-go",
                "controller-runtime",
                "Go client",
                "sig-storage-lib-external-provisioner",
                "KEP-5915",
                "csi-attacher-operator"
            ]
            .contains(&cells[4]),
            "{line}"
        );
        let labels = cells[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let name = cells[0].trim_matches('`').to_owned();
        assert!(
            found.insert(name, (cells[1].to_owned(), labels)).is_none(),
            "twice: {line}"
        );
    }
    found
}

/// Families with a sample, with their types and the names of their labels.
fn exposed(classic: &str) -> Families {
    let mut found = Families::new();
    let mut family = (String::new(), String::new());
    for line in classic.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            family = (name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') {
            let (name, kind) = family.clone();
            let labels = &mut found.entry(name).or_insert((kind, Vec::new())).1;
            for label in labels_of(line).into_iter().filter(|label| label != "le") {
                if !labels.contains(&label) {
                    labels.push(label);
                }
            }
        }
    }
    found
}

/// The names of the labels of a sample; the values hold no quotes here.
fn labels_of(line: &str) -> Vec<String> {
    let inner = line.split_once('{').map_or("", |(_, rest)| rest);
    let names = inner
        .split("=\"")
        .map(|part| part.rsplit([',', '{', '"']).next().unwrap_or_default());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.pop();
    names
}
