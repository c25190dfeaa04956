//! `OTEL_SEMCONV_STABILITY_OPT_IN` and `OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN`: which names attributes have, and where
//! failed calls are told.

use super::reader::Reader;

/// Which conventions spans follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conventions {
    /// Names on the spans of CSI calls.
    pub rpc: RpcConvention,
    /// Where failed CSI calls are told.
    pub exceptions: ExceptionSignal,
}

/// Names on the spans of CSI calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RpcConvention {
    /// `rpc`: those of the schema in [`crate::telemetry::names::SCHEMA_URL`].
    #[default]
    New,
    /// `rpc/dup`: these and the old ones; of a name that both have, the new meaning.
    Dup,
    /// `rpc/old`: those up to 1.37.
    Old,
}

impl RpcConvention {
    /// Whether attributes by the new names are set.
    pub const fn is_new(self) -> bool {
        matches!(self, Self::New | Self::Dup)
    }

    /// Whether attributes by the old names are set.
    pub const fn is_old(self) -> bool {
        matches!(self, Self::Old | Self::Dup)
    }
}

/// Where failed CSI calls are told, beside the status of their span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExceptionSignal {
    /// `logs`: as a log record. Also the default: events on spans are deprecated for that.
    #[default]
    Logs,
    /// `logs/dup`: as a log record and as an event on the span.
    LogsAndSpans,
}

/// What other instrumentation may be asked for in the same variable.
const OF_OTHERS: [&str; 6] = [
    "http",
    "database",
    "messaging",
    "code",
    "k8s",
    "gen_ai_latest_experimental",
];

impl Reader<'_> {
    pub(super) fn conventions(&mut self) -> Conventions {
        Conventions {
            rpc: self.rpc_convention(),
            exceptions: self.exception_signal(),
        }
    }

    /// Asked for several, both are set: whoever reads the one or the other finds it.
    fn rpc_convention(&mut self) -> RpcConvention {
        const NAME: &str = "OTEL_SEMCONV_STABILITY_OPT_IN";
        let (mut new, mut old) = (false, false);
        for entry in self.list(NAME).unwrap_or_default() {
            match entry.as_str() {
                "rpc" => new = true,
                "rpc/dup" => (new, old) = (true, true),
                "rpc/old" => old = true,
                other if OF_OTHERS.contains(&other.trim_end_matches("/dup")) => {}
                _ => self.warn(NAME, "expected rpc, rpc/dup or rpc/old"),
            }
        }
        match (new, old) {
            (true, true) => RpcConvention::Dup,
            (false, true) => RpcConvention::Old,
            (_, false) => RpcConvention::New,
        }
    }

    fn exception_signal(&mut self) -> ExceptionSignal {
        const NAME: &str = "OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN";
        let mut signal = ExceptionSignal::default();
        for entry in self.list(NAME).unwrap_or_default() {
            match entry.as_str() {
                "logs" => {}
                "logs/dup" => signal = ExceptionSignal::LogsAndSpans,
                _ => self.warn(NAME, "expected logs or logs/dup"),
            }
        }
        signal
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const STABILITY: &str = "OTEL_SEMCONV_STABILITY_OPT_IN";
    const EXCEPTIONS: &str = "OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN";

    fn read(name: &str, value: &str) -> (Conventions, Vec<String>) {
        let parsed = parse(&[(name.to_owned(), value.to_owned())].into(), "1");
        (parsed.settings.conventions, parsed.warnings)
    }

    #[test]
    fn the_names_of_rpc_attributes_are_chosen() {
        let unknown = [format!("{STABILITY} is ignored: expected rpc, rpc/dup or rpc/old")];
        for (value, rpc, warnings) in [
            ("", RpcConvention::New, &[][..]),
            ("  ", RpcConvention::New, &[]),
            ("rpc", RpcConvention::New, &[]),
            ("RPC/Dup", RpcConvention::Dup, &[]),
            (" rpc/old ", RpcConvention::Old, &[]),
            ("rpc,rpc/old", RpcConvention::Dup, &[]),
            ("rpc,rpc/dup", RpcConvention::Dup, &[]),
            ("rpc/old,rpc/dup", RpcConvention::Dup, &[]),
            ("http/dup, database ,rpc/old,,k8s", RpcConvention::Old, &[]),
            ("rpc/new", RpcConvention::New, &unknown),
            ("yes,rpc/dup", RpcConvention::Dup, &unknown),
            ("true", RpcConvention::New, &unknown),
        ] {
            let (read, told) = read(STABILITY, value);
            assert_eq!((read.rpc, &*told), (rpc, warnings), "{value:?}");
            assert_eq!(read.exceptions, ExceptionSignal::Logs);
        }
    }

    #[test]
    fn the_signal_of_failed_calls_is_chosen() {
        let unknown = [format!("{EXCEPTIONS} is ignored: expected logs or logs/dup")];
        for (value, signal, warnings) in [
            ("", ExceptionSignal::Logs, &[][..]),
            ("logs", ExceptionSignal::Logs, &[]),
            ("LOGS/DUP", ExceptionSignal::LogsAndSpans, &[]),
            ("logs,logs/dup", ExceptionSignal::LogsAndSpans, &[]),
            ("spans", ExceptionSignal::Logs, &unknown),
        ] {
            let (read, told) = read(EXCEPTIONS, value);
            assert_eq!((read.exceptions, &*told), (signal, warnings), "{value:?}");
            assert_eq!(read.rpc, RpcConvention::New);
        }
    }
}
