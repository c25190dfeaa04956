//! The command line, and which scenarios and attachers it selects.

use std::path::PathBuf;

use clap::Parser;
use regex::Regex;

use crate::command::Template;
use crate::launcher::LAUNCHER;
use crate::role::Role;
use crate::scenario::{Level, Scenario, Setup};
use crate::suite::Mode;
use crate::support::{Error, Result};

/// In the place of a sidecar the operator does as the sidecar: what may be published is never released without a call.
const RELEASES_WITHOUT_CALL: &[&str] = &[
    "driver-restart/former-finalizers",
    "no-attach/former-finalizer-attachment",
];

/// Does an attacher do what Kubernetes and CSI drivers rely on? Starts an API server and a scripted CSI driver, runs the
/// attacher against both, and judges the objects that it leaves and the calls that it makes.
///
/// Exit code 0: all that was played passed, extensions may be missing. 1: a scenario failed. 2: nothing was played, or the
/// suite could not start.
#[derive(Debug, Parser)]
#[command(name = "csi-attacher-conformance", version)]
pub struct Arguments {
    /// Command of an attacher, such as 'csi-attacher --kubeconfig={kubeconfig} --csi-address={socket}'; a name may stand
    /// before it, as in 'mine=command'. May be repeated: each gets a column
    #[arg(
        long = "attacher",
        value_name = "[NAME=]COMMAND",
        env = "ATTACHER_CMD",
        hide_env_values = true
    )]
    attachers: Vec<String>,
    /// The program csi-attacher-operator: plays both of its modes, AttacherConfig and flags, and as a provisioner AttacherConfig
    #[arg(long, value_name = "PATH")]
    operator: Option<PathBuf>,
    /// What is played; both for the operator, and attach for others, unless this says otherwise
    #[arg(long, value_name = "ROLE", value_enum)]
    role: Option<Role>,
    /// The attacher is the Go sidecar: where the suite knows that it fails, its failure is expected, and its success is an error
    #[arg(long)]
    peer: bool,
    /// Play only the attacher of this name
    #[arg(long, value_name = "NAME")]
    mode: Option<String>,
    /// Play only scenarios of which "id: title" matches
    #[arg(long, value_name = "REGEX")]
    run: Option<Regex>,
    /// Do not play scenarios of which "id: title" matches
    #[arg(long, value_name = "REGEX")]
    skip: Option<Regex>,
    /// Play only scenarios of this level and of those above it
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "extension")]
    level: Level,
    /// List the scenarios and play none; with --json as JSON
    #[arg(long)]
    pub list: bool,
    /// Write the results as JSON; - is the standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write how many scenarios passed, failed and are not supported into this Markdown file, between its two marks
    #[arg(long, value_name = "FILE")]
    pub document: Option<PathBuf>,
    /// Keep the logs of the attachers in this folder
    #[arg(long, value_name = "FOLDER", env = "CONFORMANCE_LOGS")]
    pub logs: Option<PathBuf>,
}

impl Arguments {
    /// The roles that are played, or listed.
    pub fn roles(&self) -> Vec<Role> {
        match self.role {
            Some(role) => vec![role],
            None if self.operator.is_some() || self.list => Role::ALL.to_vec(),
            None => vec![Role::Attach],
        }
    }

    /// The setups of a role that have a wanted scenario, with only such scenarios; each list has a control plane of its own.
    pub fn lanes(&self, role: Role) -> Vec<Vec<Setup>> {
        let mut lanes = role.lanes();
        for lane in &mut lanes {
            for setup in lane.iter_mut() {
                setup.scenarios.retain(|scenario| self.wants(scenario));
            }
            lane.retain(|setup| !setup.scenarios.is_empty());
        }
        lanes.retain(|lane| !lane.is_empty());
        lanes
    }

    fn wants(&self, scenario: &Scenario) -> bool {
        let text = format!("{}: {}", scenario.id, scenario.title);
        let run = self.run.as_ref().is_none_or(|run| run.is_match(&text));
        let skip = self.skip.as_ref().is_some_and(|skip| skip.is_match(&text));
        run && !skip && scenario.level <= self.level
    }

    /// The attachers that are put to the suite in a role.
    ///
    /// # Errors
    /// When a command cannot be read, or there is none.
    pub fn modes(&self, role: Role) -> Result<Vec<Mode>> {
        let mut modes = match &self.operator {
            Some(operator) => operator_modes(&operator.display().to_string(), role)?,
            None => Vec::new(),
        };
        // Who names none means an attacher.
        let plays = self.role == Some(role) || role == Role::Attach;
        for attacher in self.attachers.iter().filter(|attacher| plays && !attacher.is_empty()) {
            let (name, command) = named(attacher);
            let template = Template::parse(command).map_err(|error| Error::Other(format!("--attacher: {error}")))?;
            modes.push(Mode {
                name: name.to_owned(),
                number: modes.len(),
                template,
                peer: self.peer,
                left_out: None,
            });
        }
        modes.retain(|mode| self.mode.as_ref().is_none_or(|wanted| *wanted == mode.name));
        if modes.is_empty() {
            let why = "no attacher is named: give --attacher='NAME=COMMAND' or --operator=PATH, and with --mode one of their names";
            return Err(Error::Other(why.to_owned()));
        }
        Ok(modes)
    }
}

/// A name before the command, if the first equals sign comes before any blank, quote, slash or dash.
fn named(attacher: &str) -> (&str, &str) {
    match attacher.split_once('=') {
        Some((name, command)) if !name.is_empty() && name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_') => {
            (name, command)
        }
        _ => ("attacher", attacher),
    }
}

fn operator_modes(operator: &str, role: Role) -> Result<Vec<Mode>> {
    let own = std::env::current_exe().map_err(|error| Error::Other(format!("cannot find this program: {error}")))?;
    let sidecar = [
        "--kubeconfig={kubeconfig}".to_owned(),
        "--csi-address={socket}".to_owned(),
    ];
    let launcher = [
        own.display().to_string(),
        LAUNCHER.to_owned(),
        format!("--operator={operator}"),
        "--admin-kubeconfig={admin_kubeconfig}".to_owned(),
        "--driver-name={driver}".to_owned(),
        format!("--role={}", role.name()),
    ];
    let as_config = Mode {
        name: "AttacherConfig".to_owned(),
        number: 0,
        template: Template::of(launcher.into_iter().chain(sidecar.clone())),
        peer: false,
        left_out: Some(&[]),
    };
    let by_flags = Mode {
        name: "flags".to_owned(),
        number: 1,
        template: Template::of(std::iter::once(operator.to_owned()).chain(sidecar)),
        peer: false,
        left_out: Some(RELEASES_WITHOUT_CALL),
    };
    // It takes the place of an attacher only, so far.
    Ok(match role {
        Role::Attach => vec![as_config, by_flags],
        Role::Provision => vec![as_config],
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn arguments(words: &[&str]) -> Arguments {
        let words = std::iter::once("csi-attacher-conformance").chain(words.iter().copied());
        Arguments::try_parse_from(words).expect("they are read")
    }

    fn ids(words: &[&str]) -> Vec<String> {
        let arguments = arguments(words);
        let lanes = Role::ALL.into_iter().flat_map(|role| arguments.lanes(role));
        let scenarios = lanes.flatten().flat_map(|setup| setup.scenarios);
        scenarios.map(|scenario| scenario.id).collect()
    }

    #[test]
    fn ids_are_unique_and_of_plain_characters() {
        let all = ids(&[]);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let plain = |it: char| it.is_ascii_alphanumeric() || "-/".contains(it);
        assert!(
            all.iter()
                .all(|id| id.chars().all(plain) && id.matches('/').count() == 1),
            "{all:?}"
        );
    }

    /// Results of different versions are compared by ids: one is added to the list, and none is taken off or changed.
    #[test]
    fn ids_are_those_of_the_list() {
        let listed: BTreeSet<&str> = include_str!("../ids.txt").lines().collect();
        let all = ids(&[]);
        let all: BTreeSet<&str> = all.iter().map(String::as_str).collect();
        let gone: Vec<_> = listed.difference(&all).collect();
        let new: Vec<_> = all.difference(&listed).collect();
        assert!(
            gone.is_empty(),
            "removed or renamed, though results are compared by them: {gone:?}"
        );
        assert!(new.is_empty(), "not in tests/conformance/ids.txt: {new:?}");
    }

    #[test]
    fn scenarios_are_selected_by_id_title_and_level() {
        assert_eq!(ids(&["--run=^attach/block:"]), ["attach/block"]);
        assert_eq!(ids(&["--run=volumeMode Block is"]), ["attach/block"]);
        assert!(ids(&["--run=no such scenario"]).is_empty());
        assert!(!ids(&["--skip=^attach/"]).iter().any(|id| id.starts_with("attach/")));
        let (safety, core, all) = (ids(&["--level=safety"]), ids(&["--level=core"]), ids(&[]));
        assert!(!safety.is_empty() && safety.len() < core.len() && core.len() < all.len());
        assert!(core.contains(&"attach/block".to_owned()) && !safety.contains(&"attach/block".to_owned()));
    }

    /// Logs, drivers and objects are called as their setup.
    #[test]
    fn setups_have_names_of_their_own_and_none_follows_the_one_whose_settings_stay() {
        let lanes = Role::ALL.into_iter().flat_map(Role::lanes);
        let lanes: Vec<Vec<&str>> = lanes
            .map(|lane| lane.iter().map(|setup| setup.name).collect())
            .collect();
        let names: Vec<&str> = lanes.iter().flatten().copied().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        let last = lanes.iter().filter_map(|lane| lane.last());
        assert_eq!(last.filter(|name| **name == "provision-short").count(), 1, "{lanes:?}");
    }

    #[test]
    fn what_is_left_out_exists() {
        let all = ids(&[]);
        assert!(RELEASES_WITHOUT_CALL.iter().all(|id| all.contains(&(*id).to_owned())));
    }

    #[test]
    fn an_attacher_may_have_a_name() {
        assert_eq!(named("mine=/bin/csi --a=b"), ("mine", "/bin/csi --a=b"));
        assert_eq!(named("/bin/csi --a=b"), ("attacher", "/bin/csi --a=b"));
        assert_eq!(named("csi --a=b"), ("attacher", "csi --a=b"));
        assert!(arguments(&[]).modes(Role::Attach).is_err());
        let two = arguments(&["--attacher=a=x", "--attacher=y", "--mode=a"])
            .modes(Role::Attach)
            .expect("one is left");
        assert_eq!(two.len(), 1);
    }

    #[test]
    fn an_attacher_is_played_as_a_provisioner_only_when_that_is_said() {
        let roles = |words: &[&str]| arguments(words).roles();
        assert_eq!(roles(&["--attacher=x"]), [Role::Attach]);
        assert_eq!(roles(&["--attacher=x", "--role=provision"]), [Role::Provision]);
        assert_eq!(roles(&["--operator=o"]), Role::ALL);
        let names = |words: &[&str], role| {
            let modes = arguments(words).modes(role).expect("there is one");
            modes.into_iter().map(|mode| mode.name).collect::<Vec<_>>()
        };
        let both = ["--operator=o", "--attacher=a=x"];
        assert_eq!(names(&both, Role::Attach), ["AttacherConfig", "flags", "a"]);
        assert_eq!(names(&both, Role::Provision), ["AttacherConfig"]);
        let both = ["--operator=o", "--attacher=a=x", "--role=provision"];
        assert_eq!(names(&both, Role::Provision), ["AttacherConfig", "a"]);
    }

    #[test]
    fn unknown_words_are_refused() {
        for words in [["--typo"], ["typo"], ["--level=typo"], ["--role=typo"], ["--run=["]] {
            let words = std::iter::once("csi-attacher-conformance").chain(words);
            assert!(Arguments::try_parse_from(words).is_err());
        }
    }
}
