//! Commands of kubectl in the documents and in the notes of the charts read what the text says: nothing is left out in silence.

use std::fs;
use std::path::Path;

use super::markdown::{self, Document};
use super::{Problems, none};

/// Kinds without a namespace, by their names for kubectl.
const CLUSTER_SCOPED: [&str; 18] = [
    "atc",
    "attacherconfig",
    "attacherconfigs",
    "csidriver",
    "csidrivers",
    "csinode",
    "csinodes",
    "namespace",
    "no",
    "node",
    "nodes",
    "ns",
    "persistentvolume",
    "pv",
    "sc",
    "storageclass",
    "volumeattachment",
    "volumeattachments",
];

/// Whether a word is this flag, with or without a value.
fn is(word: &str, flag: &str) -> bool {
    word.strip_prefix(flag)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// What is wrong with the arguments of kubectl.
fn wrong_arguments(command: &str) -> Option<&'static str> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let has = |flags: &[&str]| words.iter().any(|word| flags.iter().any(|flag| is(word, flag)));
    if words.contains(&"logs") && has(&["-l", "--selector"]) && !has(&["--tail"]) {
        return Some("reads the last 10 lines of each pod alone: add --tail=-1");
    }
    let at = words.iter().position(|word| *word == "--for");
    let object = at.and_then(|at| words.get(at + 1).copied());
    let object = object.or_else(|| words.iter().find_map(|word| word.strip_prefix("--for=")));
    let kind = object
        .and_then(|object| object.split(['/', '.']).next())
        .map(str::to_lowercase);
    let is_of_cluster = kind.is_some_and(|kind| CLUSTER_SCOPED.contains(&&*kind));
    if words.contains(&"events") && is_of_cluster && !has(&["-n", "--namespace", "-A", "--all-namespaces"]) {
        return Some("asks in the namespace of the context; these Events are in another: add --namespace default");
    }
    None
}

/// What is wrong with a command that xargs puts names into.
fn wrong_names(command: &str) -> Option<&'static str> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let sets = words.contains(&"annotate") || words.contains(&"label");
    let places = words.iter().any(|word| word.starts_with("-I"));
    (sets && !places).then_some("puts the name behind what is set, which kubectl refuses: use xargs -I{}")
}

/// The commands in a text that begin with this word.
fn commands<'t>(text: &'t str, program: &str) -> Vec<&'t str> {
    let rests = text.split(program).skip(1);
    rests
        .filter_map(|rest| rest.split(['|', ';', '&', '`', '\n']).next())
        .collect()
}

/// What is wrong in texts, each of which has a place.
fn problems(texts: &[(String, String)]) -> Problems {
    let mut problems = Problems::new();
    for (place, text) in texts {
        let text = text.replace("\\\n", " ");
        let of_kubectl = commands(&text, "kubectl ").into_iter().filter_map(wrong_arguments);
        let of_xargs = commands(&text, "xargs ").into_iter().filter_map(wrong_names);
        problems.extend(
            of_kubectl
                .chain(of_xargs)
                .map(|what| format!("{place}: a command {what}")),
        );
    }
    problems
}

/// What stands in a document for a shell: the blocks, and what is in backticks.
fn of_document(document: &Document) -> Vec<(String, String)> {
    let blocks = document.blocks().into_iter().map(|block| (block.line, block.text));
    let texts = document.spans().into_iter().chain(blocks);
    texts
        .map(|(line, text)| (format!("{}:{line}", document.path), text))
        .collect()
}

/// What the charts tell after an installation.
fn notes() -> Vec<(String, String)> {
    let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts");
    let folders = fs::read_dir(charts).expect("the folder can be read");
    let files = folders.map(|folder| {
        folder
            .expect("the folder can be read")
            .path()
            .join("templates/NOTES.txt")
    });
    files
        .filter_map(|file| Some((file.display().to_string(), fs::read_to_string(&file).ok()?)))
        .collect()
}

#[test]
fn every_command_of_kubectl_reads_what_the_text_says() {
    let mut texts = notes();
    assert!(!texts.is_empty(), "no chart has notes");
    texts.extend(markdown::all().iter().flat_map(of_document));
    none(&problems(&texts));
}

#[test]
fn a_command_that_reads_too_little_is_found() {
    for (text, is_wrong) in [
        ("kubectl -n x logs -l app=y | grep z", true),
        ("kubectl -n x logs --selector=app=y --previous", true),
        ("kubectl -n x logs -l app=y --tail=-1 | grep z", false),
        ("kubectl -n x logs -l app=y \\\n  --tail 100", false),
        ("kubectl logs web-0", false),
        ("kubectl events --for volumeattachment/NAME", true),
        ("kubectl events --for=atc/NAME", true),
        ("kubectl events --for AttacherConfig.attacher.csi.dev/NAME", true),
        (
            "kubectl events --namespace web --for pvc/NAME; kubectl events --for pv/NAME",
            true,
        ),
        ("kubectl events --namespace default --for pv/NAME", false),
        ("kubectl events -A --for pv/NAME", false),
        ("kubectl events --for pvc/NAME", false),
        ("kubectl wait --for=condition=Ready attacherconfig/NAME", false),
        ("kubectl get atc -o name | xargs -n1 kubectl annotate a=b", true),
        ("kubectl get atc -o name | xargs -I{} kubectl annotate {} a=b", false),
        ("kubectl get atc -o name | xargs -n1 kubectl delete", false),
    ] {
        for document in [format!("```console\n{text}\n```\n"), format!("Text `{text}` text.\n")] {
            let found = problems(&of_document(&Document::new("A.md", &document)));
            assert_eq!(!found.is_empty(), is_wrong, "{document}: {found:?}");
        }
    }
}
