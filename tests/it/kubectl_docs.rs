//! What docs/reference/ATTACHERCONFIG.md shows is what kubectl prints. With `UPDATE=1` the output is written there anew.

use std::collections::BTreeSet;
use std::path::PathBuf;

use csi_attacher_kube::events;
use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::condition::{ConditionReason, ConditionType};
use csi_mock_driver::{ControllerCapability, Method, MockDriverBuilder, Rule};
use kube::{Api, CustomResourceExt};
use serde_json::{Value, json};
use tonic::Code;

use crate::rig::{Driver, LIMIT, World, operator_options};
use crate::support::operator::{apply_config, wait_condition};
use crate::support::wait::wait_for;
use crate::support::{Kubectl, Result};

/// The folder of the sockets in the text.
const SOCKETS: &str = "/csi";
const REPLICA: &str = "csi-attacher-operator-7d9c5b6f4-x2x7p";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/reference/ATTACHERCONFIG.md")
}

fn document() -> String {
    std::fs::read_to_string(path()).unwrap()
}

/// A piece of the text.
enum Part {
    /// Prose, with its line ends.
    Prose(String),
    /// A command of a console block, and what it prints.
    Command { line: String, output: String },
}

/// Takes the console blocks apart.
fn parts(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut console = false;
    for line in text.lines() {
        match line {
            "```console" => console = true,
            "```" => console = false,
            _ => {}
        }
        match (console, line.strip_prefix("$ "), parts.last_mut()) {
            (true, Some(command), _) => parts.push(Part::Command {
                line: command.to_owned(),
                output: String::new(),
            }),
            (true, None, Some(Part::Command { output, .. })) if line != "```console" => {
                output.push_str(line);
                output.push('\n');
            }
            (_, _, Some(Part::Prose(prose))) => {
                prose.push_str(line);
                prose.push('\n');
            }
            _ => parts.push(Part::Prose(format!("{line}\n"))),
        }
    }
    parts
}

fn joined(parts: &[Part]) -> String {
    let text = |part: &Part| match part {
        Part::Prose(prose) => prose.clone(),
        Part::Command { line, output } => format!("$ {line}\n{output}"),
    };
    parts.iter().map(text).collect()
}

/// The words of a command line as a shell takes them apart, with single quotes only.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (index, piece) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            words.last_mut().unwrap().push_str(piece);
            continue;
        }
        for (index, word) in piece.split(' ').enumerate() {
            if index > 0 {
                words.push(String::new());
            }
            words.last_mut().unwrap().push_str(word);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Without what differs each time: ages, times, UIDs, versions, and the width of columns.
fn shape(output: &str) -> String {
    let age = output
        .lines()
        .next()
        .filter(|head| head.starts_with("NAME "))
        .and_then(|head| head.find("AGE"));
    let lines = output.lines().enumerate().map(|(number, line)| {
        let line = match age {
            Some(at) if number > 0 && line.len() > at => {
                let (before, rest) = line.split_at(at);
                let after = rest.split_once(' ').map_or("", |(_, after)| after);
                format!("{before}<age> {after}")
            }
            _ => line.to_owned(),
        };
        let mut words: Vec<String> = line.split_whitespace().map(neutral).collect();
        if words.first().is_some_and(|word| word == "Normal" || word == "Warning")
            && let Some(age) = words.get_mut(2)
        {
            // A line of the events that `describe` shows: type, reason, age.
            "<age>".clone_into(age);
        }
        words.join(" ")
    });
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// A word, or what stands for it.
fn neutral(word: &str) -> String {
    let matches = |pattern: &str| {
        word.len() == pattern.len()
            && word.bytes().zip(pattern.bytes()).all(|(byte, wanted)| match wanted {
                b'0' => byte.is_ascii_digit(),
                b'x' => byte.is_ascii_hexdigit(),
                _ => byte == wanted,
            })
    };
    if matches("0000-00-00T00:00:00Z") {
        return "<time>".to_owned();
    }
    if matches("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") {
        return "<uid>".to_owned();
    }
    word.to_owned()
}

/// As [`shape`], where a line of `describe` also has a number that differs each time.
fn comparable(output: &str) -> String {
    let lines = shape(output);
    let lines = lines.lines().map(|line| match line.split_once("Resource Version: ") {
        Some((before, _)) => format!("{before}Resource Version: <version>\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// A driver called `short` in the text.
async fn driver<'w>(
    world: &'w World,
    short: &str,
    name: &str,
    settings: Value,
    capabilities: &[ControllerCapability],
    build: impl FnOnce(MockDriverBuilder) -> MockDriverBuilder,
) -> Result<Driver<'w>> {
    let capabilities = capabilities.to_vec();
    let driver = world
        .named_driver(short, name, |mock| {
            build(
                mock.capabilities(capabilities)
                    .settings(|settings| "v1.64.0".clone_into(&mut settings.vendor_version)),
            )
        })
        .await?;
    world.fixtures.csi_driver(name, true).await?;
    driver.configure(&settings).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    Ok(driver)
}

/// Two drivers that work, one of which has a volume that fails, and an AttacherConfig whose driver is not there.
async fn scene(world: &World) -> Result<Vec<Driver<'_>>> {
    use ControllerCapability::{CreateDeleteVolume, PublishUnpublishVolume};
    let settings = json!({
        "driverName": "ebs.csi.aws.com",
        "timeouts": {"publish": "2m", "unpublish": "2m"},
        "concurrency": {"perNode": 4},
    });
    let failing = Rule::on(Method::ControllerPublishVolume)
        .volume("pvc-3")
        .fail(Code::Internal, "the volume is busy");
    let both = [CreateDeleteVolume, PublishUnpublishVolume];
    let ebs = driver(world, "ebs", "ebs.csi.aws.com", settings, &both, |mock| {
        mock.rule(failing)
    })
    .await?;
    let nfs = driver(
        world,
        "nfs",
        "nfs.csi.k8s.io",
        json!({}),
        &[CreateDeleteVolume],
        |mock| mock,
    )
    .await?;
    apply_config(&world.client, "lab", world.spec("lab", &json!({}))).await?;
    wait_condition(&world.client, "lab", "DriverReachable", "False", Some("SocketMissing")).await?;
    for name in ["pvc-1", "pvc-2"] {
        ebs.attach(name).await?;
    }
    ebs.claim("pvc-3").await?;
    let configs: Api<AttacherConfig> = Api::all(world.client.clone());
    wait_for(configs, "ebs", "one failing volume", LIMIT, |config| {
        let status = config.and_then(|config| config.status.as_ref());
        let counts = status.and_then(|status| status.attachments.as_ref());
        counts.is_some_and(|counts| (counts.attached, counts.failing) == (2, 1))
            && status.is_some_and(|status| status.last_failure.is_some())
    })
    .await?;
    // The last two that are looked at.
    ebs.wait("AttachmentsHealthy", "False", None).await?;
    ebs.wait("AttachmentsConsistent", "True", None).await?;
    crate::events::event(world, "AttacherConfig", "ebs", "Ready", "").await?;
    Ok(vec![ebs, nfs])
}

/// What a command prints, on both streams, with the sockets where the text has them.
async fn printed(world: &World, kubectl: &Kubectl, line: &str) -> Result<String> {
    let words = words(line);
    let arguments: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    let output = match arguments.first() {
        // The only command that is to fail.
        Some(&"patch") => kubectl.refused(&arguments, "").await?,
        // What is explained comes from a document that follows the CustomResourceDefinition with a delay.
        Some(&"explain") => explained(kubectl, &arguments).await?,
        _ => kubectl.run(&arguments).await?,
    };
    let sockets = world.sockets.path().display().to_string();
    let replaced = |text: &str| text.replace(&sockets, SOCKETS);
    let lines = if output.starts_with("NAME ") {
        aligned(&output, replaced)
    } else {
        output.lines().map(|line| replaced(line.trim_end())).collect()
    };
    Ok(lines.join("\n").trim_end().to_owned() + "\n")
}

/// The lines of a table whose cells were changed.
fn aligned(table: &str, change: impl Fn(&str) -> String) -> Vec<String> {
    let head = table.lines().next().unwrap_or_default();
    let starts = head.char_indices().filter(|(index, letter)| {
        let before = head[..*index].chars().next_back();
        !letter.is_whitespace() && before.is_none_or(char::is_whitespace)
    });
    let starts: Vec<usize> = starts.map(|(index, _)| index).collect();
    let cells = |line: &str| -> Vec<String> {
        let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
        let cell = |(start, end): (&usize, usize)| line.get(*start..end.min(line.len())).unwrap_or_default().trim();
        starts.iter().zip(ends).map(|place| change(cell(place))).collect()
    };
    let rows: Vec<Vec<String>> = table.lines().map(cells).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let padded = |row: &Vec<String>| {
        let cells = row
            .iter()
            .enumerate()
            .map(|(column, cell)| format!("{cell:<0$}", width(column)));
        cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    };
    rows.iter().map(padded).collect()
}

async fn explained(kubectl: &Kubectl, arguments: &[&str]) -> Result<String> {
    let asking = async {
        loop {
            if let Ok(output) = kubectl.run(arguments).await {
                return output;
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    crate::rig::within("kubectl explain", asking).await
}

#[tokio::test]
async fn the_document_shows_what_kubectl_prints() -> Result<()> {
    let world = World::own().await?;
    let kubectl = Kubectl::of(&world.cluster).await?;
    let _operator = world
        .operator(operator_options().argument(format!("--identity={REPLICA}")))
        .await?;
    let _drivers = scene(&world).await?;
    let update = std::env::var_os("UPDATE").is_some_and(|value| value == "1");
    let mut parts = parts(&document());
    let mut wrong = Vec::new();
    for part in &mut parts {
        let Part::Command { line, output } = part else { continue };
        assert!(line.starts_with("kubectl "), "{line}");
        let found = printed(&world, &kubectl, line).await?;
        if comparable(&found) == comparable(output) {
            continue;
        }
        if update {
            *output = found;
        } else {
            wrong.push(format!("$ {line}\n{found}"));
        }
    }
    if update {
        std::fs::write(path(), joined(&parts)).unwrap();
    }
    assert!(
        wrong.is_empty(),
        "docs/reference/ATTACHERCONFIG.md shows otherwise; `make kubectl-docs` writes it anew:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

#[test]
fn a_document_is_taken_apart_and_put_together() {
    let text = document();
    let parts = parts(&text);
    assert_eq!(joined(&parts), text);
    let commands = parts.iter().filter(|part| matches!(part, Part::Command { .. })).count();
    let lines = text.lines().filter(|line| line.starts_with("$ kubectl ")).count();
    assert!(commands == lines && commands >= 6, "{commands} {lines}");
    for command in [
        "get atc",
        "get atc -o wide",
        "describe atc",
        "wait --for=condition=Ready",
        "explain attacherconfig.spec",
    ] {
        assert!(
            text.lines()
                .any(|line| line.starts_with(&format!("$ kubectl {command}"))),
            "{command}"
        );
    }
}

#[test]
fn a_table_stays_aligned() {
    let table = |folder: &str| {
        let width = format!("unix://{folder}/a.sock").len();
        let row = |cells: [&str; 4]| {
            let [name, ready, endpoint, age] = cells;
            format!("{name:<4}   {ready:<5}   {endpoint:<width$}   {age}")
        };
        [
            row(["NAME", "READY", "ENDPOINT", "AGE"]),
            row(["a", "True", &format!("unix://{folder}/a.sock"), "2s"]),
            row(["long", "", &format!("unix://{folder}/b"), "3s"]),
        ]
    };
    let found = aligned(&table("/long/er").join("\n"), |cell| cell.replace("/long/er", "/c"));
    assert_eq!(found, table("/c"));
}

#[test]
fn words_and_shapes() {
    assert_eq!(
        words("kubectl patch -p '{\"a b\": 1}' x"),
        ["kubectl", "patch", "-p", "{\"a b\": 1}", "x"]
    );
    let (young, old) = (
        "NAME   AGE   HOLDER\nebs    2s    pod\n",
        "NAME     AGE      HOLDER\nebs      3m10s    pod\n",
    );
    assert_eq!(comparable(young), comparable(old));
    assert_ne!(
        comparable(young),
        comparable("NAME   AGE   HOLDER\nebs    2s    other\n")
    );
    assert_ne!(comparable(young), comparable("NAME   AGE   WHO\nebs    2s    pod\n"));
    let told = |age| format!("Normal  Ready   {age}    csi-attacher-operator  Running\n");
    assert_eq!(comparable(&told("3s")), comparable(&told("12m")));
    let (one, other) = ("At: 2026-01-01T00:00:00Z\n", "At:   2027-11-12T13:14:15Z\n");
    assert_eq!(comparable(one), comparable(other));
    assert_ne!(comparable(one), comparable("At: soon\n"));
    let version = |number| format!("  Resource Version:  {number}\n");
    assert_eq!(comparable(&version(3)), comparable(&version(4711)));
}

/// Names in backticks.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn every_field_condition_and_reason_is_told() {
    let text = document();
    let told = quoted(&text);
    let mut fields = Vec::new();
    let definition = serde_json::to_value(AttacherConfig::crd()).unwrap();
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    collect(definition.pointer(spec).unwrap(), "", &mut fields);
    assert!(fields.len() > 30, "{fields:?}");
    let reasons = ConditionReason::ALL.iter().map(|reason| reason.as_str().to_owned());
    let conditions = ConditionType::ALL.iter().map(|condition| condition.as_str().to_owned());
    let events = events::EventReason::ALL.iter().map(|reason| reason.as_str().to_owned());
    let names = fields.into_iter().chain(reasons).chain(conditions).chain(events);
    let missing: Vec<String> = names.filter(|name| !told.contains(name.as_str())).collect();
    assert!(
        missing.is_empty(),
        "docs/reference/ATTACHERCONFIG.md does not tell of {missing:?}"
    );
}

/// The paths of all fields below `properties`.
fn collect(properties: &Value, prefix: &str, fields: &mut Vec<String>) {
    for (name, schema) in properties.as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        collect(&schema["properties"], &format!("{path}."), fields);
        fields.push(path);
    }
}
