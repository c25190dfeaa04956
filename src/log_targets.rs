//! What the program and its modules are called in log filters, and which targets that means: each crate has its own.

/// Each name, beside each target that it means.
pub const ALIASES: &[(&str, &str)] = &[
    ("csi_attacher_operator", "csi_attacher_attach"),
    ("csi_attacher_operator", "csi_attacher_csi"),
    ("csi_attacher_operator", "csi_attacher_kube"),
    ("csi_attacher_operator", "csi_attacher_kubeconfig"),
    ("csi_attacher_operator", "csi_attacher_operator"),
    ("csi_attacher_operator", "csi_attacher_provision"),
    ("csi_attacher_operator", "csi_attacher_runtime"),
    ("csi_attacher_operator", "csi_attacher_telemetry"),
    ("csi_attacher_operator::apiserver", "csi_attacher_kube::apiserver"),
    ("csi_attacher_operator::apiserver", "csi_attacher_kubeconfig"),
    ("csi_attacher_operator::cache", "csi_attacher_attach::cache"),
    ("csi_attacher_operator::cache", "csi_attacher_kube::reflect"),
    ("csi_attacher_operator::cache", "csi_attacher_provision::cache"),
    ("csi_attacher_operator::csi", "csi_attacher_csi"),
    ("csi_attacher_operator::driver", "csi_attacher_attach::driver"),
    ("csi_attacher_operator::driver", "csi_attacher_provision"),
    ("csi_attacher_operator::driver", "csi_attacher_runtime"),
    ("csi_attacher_operator::events", "csi_attacher_kube::events"),
    ("csi_attacher_operator::lease", "csi_attacher_kube::lease"),
    ("csi_attacher_operator::telemetry", "csi_attacher_telemetry"),
    ("csi_attacher_operator::traces", "csi_attacher_attach::traces"),
];

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::ALIASES;
    use crate::telemetry::logs::{LogOptions, filter};

    fn options(level: &str) -> LogOptions {
        LogOptions {
            level: level.to_owned(),
            aliases: ALIASES,
            ..LogOptions::default()
        }
    }

    /// The program is made of crates. Filters name it as before.
    #[test]
    #[allow(clippy::too_many_lines, reason = "a table")]
    fn a_filter_that_names_the_program_is_about_all_of_its_crates() {
        for (level, target, logs) in [
            ("csi_attacher_operator=debug", "csi_attacher_operator::supervisor", true),
            (
                "csi_attacher_operator=debug",
                "csi_attacher_attach::driver::attempt",
                true,
            ),
            ("info,csi_attacher_operator=debug", "csi_attacher_kube::lease", true),
            ("csi_attacher_operator=debug", "h2", false),
            (
                "info,csi_attacher_operator::driver=debug",
                "csi_attacher_attach::driver::task",
                true,
            ),
            (
                "info,csi_attacher_operator::driver=debug",
                "csi_attacher_runtime::task",
                true,
            ),
            (
                "info,csi_attacher_operator::driver::task=debug",
                "csi_attacher_runtime::task",
                true,
            ),
            (
                "info,csi_attacher_operator::driver::attempt=debug",
                "csi_attacher_runtime::task",
                false,
            ),
            (
                "info,csi_attacher_operator::driver=debug",
                "csi_attacher_attach::cache",
                false,
            ),
            (
                "info,csi_attacher_operator::driver::attempt=debug",
                "csi_attacher_attach::driver::task",
                false,
            ),
            (
                "info,csi_attacher_operator::apiserver=debug",
                "csi_attacher_kube::apiserver::requests",
                true,
            ),
            (
                "info,csi_attacher_operator::apiserver=debug",
                "csi_attacher_kubeconfig::token",
                true,
            ),
            (
                "info,csi_attacher_operator::csi::client=debug",
                "csi_attacher_csi::client",
                true,
            ),
            (
                "info,csi_attacher_operator::csi=debug",
                "csi_attacher_csi::client",
                true,
            ),
            (
                "info,csi_attacher_operator::supervisor=debug",
                "csi_attacher_operator::supervisor",
                true,
            ),
            (
                "info,csi_attacher_operator[attach]=debug",
                "csi_attacher_operator::supervisor",
                false,
            ),
            (
                "info,csi_attacher_operator::cache=debug",
                "csi_attacher_kube::reflect",
                true,
            ),
            ("info,csi_attacher_attach=debug", "csi_attacher_attach::driver", true),
        ] {
            let enabled = filter(&options(level), None).unwrap();
            let subscriber = tracing_subscriber::registry().with(enabled);
            let found = tracing::subscriber::with_default(subscriber, || debugs(target));
            assert_eq!(found, logs, "{level}: {target}");
        }
    }

    /// Whether an event of a target is logged at DEBUG.
    fn debugs(target: &str) -> bool {
        macro_rules! ask {
            ($($name:literal),*) => {
                match target {
                    $($name => tracing::enabled!(target: $name, tracing::Level::DEBUG),)*
                    other => panic!("{other} is no target of this test"),
                }
            };
        }
        ask!(
            "csi_attacher_operator::supervisor",
            "csi_attacher_attach::driver",
            "csi_attacher_attach::driver::attempt",
            "csi_attacher_attach::driver::task",
            "csi_attacher_attach::cache",
            "csi_attacher_kube::lease",
            "csi_attacher_kube::apiserver::requests",
            "csi_attacher_kubeconfig::token",
            "csi_attacher_csi::client",
            "csi_attacher_runtime::task",
            "csi_attacher_kube::reflect",
            "h2"
        )
    }
}
