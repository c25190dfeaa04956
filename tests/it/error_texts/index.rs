//! The tables with messages, and whether a text is one of theirs.

use crate::documents::markdown;

const PAGE: &str = "docs/operate/TROUBLESHOOTING.md";

/// A row: the message with `<placeholders>`, and the other cells.
#[derive(Debug)]
pub struct Row {
    pub message: String,
    pub cells: Vec<String>,
}

fn table(heading: &str) -> Vec<Row> {
    let documents = markdown::all();
    let page = documents.iter().find(|document| document.path == PAGE);
    let rows = page.expect("the page is there").table(heading).into_iter();
    rows.map(|mut cells| {
        let first = cells.remove(0);
        let message = first.strip_prefix('`').and_then(|text| text.strip_suffix('`'));
        let message = message.unwrap_or_else(|| panic!("{first} is not a message in backticks"));
        Row {
            message: message.to_owned(),
            cells,
        }
    })
    .collect()
}

/// Messages of Kubernetes and of csi-attacher-operator.
pub fn rows() -> Vec<Row> {
    table("By error message")
}

/// Messages of drivers, quoted.
pub fn vendor_rows() -> Vec<Row> {
    table("Messages of drivers")
}

/// The texts between the placeholders of a message.
pub fn literals(message: &str) -> Vec<&str> {
    let mut rest = message;
    let mut literals = Vec::new();
    while let Some((before, after)) = rest.split_once('<') {
        let (_, behind) = after
            .split_once('>')
            .unwrap_or_else(|| panic!("{message}: a < without >"));
        literals.push(before);
        rest = behind;
    }
    literals.push(rest);
    literals
}

/// Whether the text is the message with something, and not nothing, in each of its placeholders.
pub fn is_instance(message: &str, text: &str) -> bool {
    let literals = literals(message);
    let (Some((first, more)), true) = (literals.split_first(), literals.len() > 1) else {
        return message == text;
    };
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let (last, middle) = more.split_last().expect("there is more than one");
    for literal in middle {
        // At least one letter stands for the placeholder.
        let after = rest.char_indices().nth(1).map_or(rest.len(), |(at, _)| at);
        let Some(at) = rest[after..].find(literal) else {
            return false;
        };
        rest = &rest[after + at + literal.len()..];
    }
    rest.strip_suffix(last).is_some_and(|value| !value.is_empty())
}

/// Fails unless the index has the message, and the text that occurred is it.
pub fn assert_indexed(message: &str, occurred: &str) {
    assert!(
        rows().iter().any(|row| row.message == message),
        "{PAGE} has no row for\n{message}\nwhich occurred as\n{occurred}"
    );
    assert!(
        is_instance(message, occurred),
        "the index says\n{message}\nbut it is\n{occurred}"
    );
}

#[test]
fn an_instance_is_recognized() {
    for (message, text, is) in [
        ("plain", "plain", true),
        ("plain", "plain!", false),
        ("volume <volume> is <state>", "volume a b is c", true),
        ("volume <volume> is <state>", "volume  is c", false),
        ("volume <volume> is <state>", "volume a is ", false),
        ("volume <volume> is <state>", "a volume b is c", false),
        ("<n> node(s)", "3 node(s)", true),
        ("<n> node(s)", "3 node(s) more", false),
        ("\"<a>\" \"<b>\"", "\"x\" \"y\"", true),
        ("\"<a>\" \"<b>\"", "\"x\" y", false),
    ] {
        assert_eq!(is_instance(message, text), is, "{message}: {text}");
    }
}
