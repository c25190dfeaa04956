//! Names in backticks: flags, targets of make, metrics, paths, fields, words of the code. Who mistypes one is told.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::markdown::{self, Document};
use super::{Problems, none, sources};

/// Flags of other programs that the documents speak of.
const FLAGS_OF_OTHERS: &[&str] = &[
    // helm
    "--take-ownership",
    "--reuse-values",
    "--skip-crds",
    "--force-conflicts",
    "--wait",
    "--rollback-on-failure",
    "--values",
    // docker
    "--label",
    "--build-arg",
    // Prometheus
    "--enable-feature",
    // etcd
    "--enable-distributed-tracing",
    "--quota-backend-bytes",
    // external-provisioner
    "--controller-publish-readonly",
    "--immediate-topology",
    "--volume-name-prefix",
    "--extra-create-metadata",
    "--strict-topology",
    "--volume-name-uuid-length",
    "--node-deployment",
    "--enable-capacity",
    "--prevent-volume-mode-conversion",
    // kube-apiserver
    "--http2-max-streams-per-connection",
    // kube-apiserver, and this operator once
    "--tracing-config-file",
    "--metrics-secure-endpoint",
    "--etcd-servers-overrides",
    // any flag at all
    "--x",
];

/// Everything that there is to speak of.
struct Known {
    flags: BTreeSet<String>,
    targets: BTreeSet<String>,
    metrics: BTreeSet<String>,
    sources: String,
}

/// Words and fields of Kubernetes and other programs.
const WORDS_OF_OTHERS: &[&str] = &[
    "ContainerCreating",
    // Of the charts of Longhorn and of the EBS driver.
    "CSI_ATTACHER_IMAGE",
    "controller.enableMetrics",
    "privateRegistry.registryUrl",
    "FailedAttachVolume",
    "FailedMount",
    "HonorPVReclaimPolicy",
    "status.storedVersions",
    // Fields that were renamed before the first release; docs/operate/UPGRADE.md lists them.
    "spec.kubernetesApi",
    "spec.tracing.samplesPerMillion",
    "spec.backoff.factor",
    "status.attachments.oldestPending.since",
    "status.lastReconcileSync.finishedAt",
    "status.lastFailure.at",
    "status.volumesInUse",
];

impl Known {
    fn load() -> Self {
        let read =
            |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("readable");
        let metrics = read("docs/reference/METRICS.md");
        let rows = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        Self {
            flags: flags_of(&read("docs/reference/FLAGS.md"))
                .union(&flags_of_test_programs())
                .cloned()
                .collect(),
            targets: targets(&read("Makefile")),
            metrics: rows.map(|(name, _)| name.to_owned()).collect(),
            sources: sources::text(),
        }
    }
}

/// The flags that have a row in docs/reference/FLAGS.md, which is made from the command lines.
fn flags_of(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `--"));
    rows.filter_map(|row| row.split(['`', ' ']).next())
        .map(|name| format!("--{name}"))
        .collect()
}

/// The flags of the programs that are there for tests.
fn flags_of_test_programs() -> BTreeSet<String> {
    let help = |program: &str| {
        let path = crate::support::built_program(program).expect("built");
        let ended = std::process::Command::new(path).arg("--help").output();
        String::from_utf8(ended.expect("the program starts").stdout).expect("text")
    };
    let helps = ["csi-mock-driver", "csi-attacher-conformance"].map(help);
    // The completion of the plugin has the flags of all its commands.
    let path = crate::support::built_program("kubectl-attacher").expect("built");
    let completion = std::process::Command::new(path)
        .args(["completion", "bash"])
        .output()
        .expect("the program starts");
    let completion = String::from_utf8(completion.stdout).expect("text");
    let words = helps
        .iter()
        .chain([&completion])
        .flat_map(|help| help.split(|letter: char| letter.is_whitespace() || "=,[]\")".contains(letter)));
    words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
}

fn targets(makefile: &str) -> BTreeSet<String> {
    let lines = makefile
        .lines()
        .filter(|line| line.starts_with(|letter: char| letter.is_ascii_lowercase()));
    let names = lines
        .filter_map(|line| line.split_once(':'))
        .filter(|(_, rest)| !rest.starts_with('='));
    names
        .map(|(name, _)| name.trim().to_owned())
        .filter(|name| !name.contains(' '))
        .collect()
}

/// What is wrong with the words of one command of make, without `make`.
fn make_problems(words: &str, known: &Known) -> Option<String> {
    let words = words
        .split_whitespace()
        .take_while(|word| !word.starts_with(['#', ';', '&', '|']));
    let mut named = words.filter(|word| !word.contains('=') && !word.starts_with('-'));
    named
        .find(|word| !known.targets.contains(*word))
        .map(|word| format!("the Makefile has no target {word}"))
}

/// What the names of the metrics begin with.
pub const METRIC_PREFIXES: [&str; 5] = [
    "csi_attacher_",
    "csi_sidecar_",
    "workqueue_",
    "rest_client_",
    "leader_election_",
];

fn is_metric(name: &str, known: &Known) -> bool {
    let suffixes = ["_bucket", "_count", "_sum"];
    let family = suffixes
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
    known.metrics.contains(name) || known.metrics.contains(family)
}

/// What is wrong with one name in backticks.
fn span_problem(span: &str, known: &Known) -> Option<String> {
    let letters = |more: &str| {
        span.chars()
            .all(|letter| letter.is_ascii_alphanumeric() || more.contains(letter))
    };
    if let Some(words) = span.strip_prefix("make ") {
        return make_problems(words, known);
    }
    if span.starts_with("--") && span.len() > 2 {
        let name = span.split(['=', ' ']).next().unwrap_or_default();
        let is_known = known.flags.contains(name) || FLAGS_OF_OTHERS.contains(&name) || name.ends_with('*');
        return (!is_known).then(|| format!("no program has the flag {name}"));
    }
    let metric = span.split(['{', ' ', '[']).next().unwrap_or_default();
    if METRIC_PREFIXES.iter().any(|prefix| metric.starts_with(prefix)) && !metric.ends_with('*') {
        return (!is_metric(metric, known)).then(|| format!("docs/reference/METRICS.md has no {metric}"));
    }
    let folders = [
        "src/", "crates/", "tests/", "docs/", "config/", "charts/", "crds/", "proto/", ".ci/",
    ];
    if folders.iter().any(|folder| span.starts_with(folder)) {
        let path = span.split([' ', ':']).next().unwrap_or_default();
        let pattern = path.contains(['*', '<', '{']) || path.split('/').any(|part| part == "NAME" || part == "NAME.md");
        let exists = pattern || Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists();
        return (!exists).then(|| format!("there is no file {path}"));
    }
    // One word in capitals and small letters, one in capitals with underlines, a path of fields, a key of an annotation.
    let begins = span.chars().next()?;
    let word = begins.is_ascii_uppercase() && letters("_") && span.len() > 3;
    let path = begins.is_ascii_lowercase() && letters(".") && span.contains('.') && !span.contains("..");
    let key = letters("./-") && span.contains("csi.dev/");
    if (word || path || key) && !WORDS_OF_OTHERS.contains(&span) && !is_in(span, path, &known.sources) {
        return Some(format!("nothing in the sources is called {span}"));
    }
    None
}

/// Whether the sources have the word, or the path of fields: as it is, or as fields within each other.
fn is_in(span: &str, path: bool, sources: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let found = |text: &str| {
        sources.match_indices(text).any(|(at, _)| {
            let before = sources[..at].chars().next_back();
            let after = sources[at + text.len()..].chars().next();
            !before.is_some_and(is_of_name) && !after.is_some_and(is_of_name)
        })
    };
    found(span)
        || (path
            && (FIELDS.with(|fields| fields.contains(span))
                || VALUES.with(|schema| is_value(span, schema) || is_value(&format!("drivers.NAME.{span}"), schema))))
}

thread_local! {
    /// Paths of the fields of AttacherConfig, with and without `spec.`.
    static FIELDS: BTreeSet<String> = fields();
    /// The schema of the chart's values.
    static VALUES: Value = serde_json::from_str(&read("charts/csi-attacher-operator/values.schema.json")).expect("JSON");
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("the file can be read")
}

fn fields() -> BTreeSet<String> {
    let text = read("docs/reference/FIELDS.md");
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let names: Vec<&str> = rows.map(|(name, _)| name).collect();
    let short = names.iter().filter_map(|name| name.strip_prefix("spec."));
    short.chain(names.iter().copied()).map(str::to_owned).collect()
}

/// Whether the chart takes a value at this path; NAME stands for a name that people choose.
fn is_value(path: &str, schema: &Value) -> bool {
    let mut place = schema;
    for (depth, name) in path.split('.').enumerate() {
        while let Some(target) = place["$ref"].as_str() {
            place = schema.pointer(target.trim_start_matches('#')).unwrap_or(&Value::Null);
        }
        let named = place["patternProperties"]
            .as_object()
            .and_then(|patterns| patterns.values().next());
        place = match (&place["properties"][name], named) {
            (own @ Value::Object(_), _) => own,
            (_, Some(named)) if name == "NAME" => named,
            _ if place["additionalProperties"] == false => return false,
            // As in Kubernetes: the schema of the chart leaves these to the API server. Most may be null instead.
            _ => return depth > 0 && (place["type"] == "object" || place["type"][0] == "object"),
        };
    }
    true
}

fn problems(documents: &[Document], known: &Known) -> Problems {
    let mut problems = Problems::new();
    for document in documents {
        for (line, span) in document.spans() {
            problems.extend(span_problem(&span, known).map(|what| format!("{}:{line}: {what}", document.path)));
        }
        for block in document.blocks() {
            for (offset, line) in block.text.lines().enumerate() {
                let command = line.trim().trim_start_matches("$ ");
                let wrong = command
                    .strip_prefix("make ")
                    .and_then(|words| make_problems(words, known));
                problems.extend(wrong.map(|what| format!("{}:{}: {what}", document.path, block.line + offset)));
            }
        }
    }
    problems
}

#[test]
fn every_name_in_backticks_is_one_that_there_is() {
    let known = Known::load();
    assert!(known.targets.contains("demo") && known.flags.contains("--csi-address") && known.metrics.len() > 50);
    none(&problems(&markdown::all(), &known));
}

#[test]
fn an_invented_name_is_found() {
    let known = Known {
        flags: BTreeSet::from(["--there".to_owned()]),
        targets: BTreeSet::from(["demo".to_owned()]),
        metrics: BTreeSet::from(["csi_attacher_there".to_owned()]),
        sources: "AttachFailed spec.there attacher.csi.dev/there PUBLISH_THIS AttachStuckMore".to_owned(),
    };
    for (span, wrong) in [
        ("make demo ONCE=1", false),
        ("make nothing", true),
        ("--there=1", false),
        ("--not-there", true),
        ("csi_attacher_there_bucket", false),
        ("csi_attacher_there{a=\"b\"}", false),
        ("csi_attacher_gone", true),
        ("src/lib.rs", false),
        ("src/nothing.rs", true),
        ("AttachFailed", false),
        ("AttachStuck", true),
        ("spec.there", false),
        ("spec.timeouts.publish", false),
        ("spec.timeouts.publsh", true),
        ("rbac.create", false),
        ("rbac.created", true),
        ("drivers.NAME.container", false),
        ("drivers.NAME.contaner", true),
        ("drivers.NAME.container.securityContext.fsGroupChangePolicy", false),
        ("podSecurityContext.supplementalGroups", false),
        ("attacherConfigs.NAME.endpoint", false),
        ("attacher.csi.dev/there", false),
        ("attacher.csi.dev/gone", true),
        ("PUBLISH_THIS", false),
        ("PUBLISH_THAT", true),
        ("kubectl get atc", false),
    ] {
        let document = Document::new("A.md", &format!("see `{span}`.\n"));
        assert_eq!(!problems(&[document], &known).is_empty(), wrong, "{span}");
    }
    let block = Document::new("A.md", "```console\n$ make nothing\n```\n");
    assert_eq!(
        problems(&[block], &known),
        ["A.md:2: the Makefile has no target nothing"]
    );
}

/// An exception that nobody needs hides a mistake one day.
#[test]
fn no_exception_is_left_over() {
    let all: String = markdown::all().into_iter().map(|document| document.text).collect();
    let unused: Vec<&&str> = FLAGS_OF_OTHERS
        .iter()
        .chain(WORDS_OF_OTHERS)
        .filter(|name| !all.contains(&format!("`{name}")))
        .collect();
    assert!(unused.is_empty(), "no document has {unused:?}");
}
