//! The flags of a cluster in commands that are shown.

use std::fmt::Write as _;

use crate::cli::GlobalOptions;

/// The flags that choose a cluster and who asks it, as a shell takes them. A command that needs a namespace names it by itself.
#[derive(Clone, Debug, Default)]
pub struct ClusterFlags(String);

impl ClusterFlags {
    /// Those that were given.
    pub fn of(global: &GlobalOptions) -> Self {
        let kubeconfig = global.kubeconfig.as_ref().map(|path| path.to_string_lossy());
        let single = [
            ("kubeconfig", kubeconfig.as_deref()),
            ("context", global.context.as_deref()),
            ("as", global.impersonate.as_deref()),
        ];
        let single = single.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let groups = global.groups.iter().map(|group| ("as-group", group.as_str()));
        let mut flags = String::new();
        for (name, value) in single.chain(groups) {
            // Writing to a String cannot fail.
            let _written = write!(flags, " --{name}={}", quoted(value));
        }
        Self(flags)
    }

    /// A command with them: after `kubectl`, and after the command of this plugin, as kubectl takes no flag before the name of a plugin.
    pub fn add_to(&self, command: &str) -> String {
        let words = if command.starts_with("kubectl attacher ") { 3 } else { 1 };
        let mut ends = command.match_indices(' ').map(|(at, _)| at);
        let end = ends.nth(words - 1).unwrap_or(command.len());
        let (before, after) = command.split_at(end);
        format!("{before}{}{after}", self.0)
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@,+-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use crate::explain::tests::builders::{attachment, both, claimed, error, with};
    use crate::explain::{Explanation, ObjectName, chain};
    use crate::observed::Lookup;
    use clap::Parser;

    fn flags(words: &[&str]) -> ClusterFlags {
        let line = ["kubectl-attacher", "why", "pod", "web-1"];
        let line = line.into_iter().chain(words.iter().copied());
        ClusterFlags::of(&Cli::try_parse_from(line).unwrap().global)
    }

    /// Who pastes a command asks the cluster that the answer is about.
    #[test]
    fn a_command_asks_the_same_cluster() {
        let given = flags(&[
            "--context",
            "prod",
            "--as=eve o'neil",
            "--as-group",
            "a",
            "--as-group=b c",
            "-n",
            "shop",
        ]);
        let shown = " --context=prod --as='eve o'\\''neil' --as-group=a --as-group='b c'";
        for (before, after) in [
            (
                "kubectl",
                " patch atc ssd --type=merge -p '{\"spec\":{\"suspend\":false}}'",
            ),
            ("kubectl attacher why", " va csi-1"),
            ("kubectl attacher retry", " csi-1"),
        ] {
            let command = format!("{before}{after}");
            assert_eq!(given.add_to(&command), format!("{before}{shown}{after}"));
            assert_eq!(flags(&[]).add_to(&command), command);
        }
        let words = ["kubectl-attacher", "why", "--context=prod", "va", "csi-1"];
        let pasted = Cli::try_parse_from(words).unwrap();
        assert_eq!(pasted.global.context.as_deref(), Some("prod"));
    }

    #[test]
    fn each_command_of_an_answer_has_the_flags() {
        let failed = both(
            claimed(),
            &error("attachError", "rpc error: code = Internal desc = busy"),
        );
        let scene = with(|scene| scene.attachment = Lookup::Found(attachment(failed)));
        let subject = ObjectName::cluster("VolumeAttachment", "csi-1");
        let explained = Explanation::new(subject, Vec::new(), vec![chain(&scene)], Vec::new());
        let given = flags(&["--kubeconfig=/tmp/my config"]);
        let explained = explained.with_commands(|command| given.add_to(command));
        let command = explained.chains[0].diagnosis.advice[0].command.as_deref();
        assert_eq!(
            command,
            Some("kubectl attacher retry --kubeconfig='/tmp/my config' csi-1")
        );
    }
}
