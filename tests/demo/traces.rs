//! Where the traces of the demonstration go: to a receiver in this process, or to a Jaeger of its own.

use std::time::Duration;

use csi_attacher_telemetry::names;

use crate::plan;
use crate::processes::write_private;
use crate::say::Say;
use crate::support::controlplane::watchdog::StateFolder;
use crate::support::jaeger::{Trace, tree as timeline};
use crate::support::otlp::OtlpReceiver;
use crate::support::{Error, Jaeger, OperatorOptions, Result};
use crate::tree;

/// How long a trace may take to arrive.
const WITHIN: Duration = Duration::from_mins(1);
/// The call and the root of the trace of an attach. A root is exported at its end.
const ATTACH: (&str, &str) = ("csi.v1.Controller/ControllerPublishVolume", "VolumeAttachment.attach");
/// Those of the life of a volume that the operator made. Each trace has a link to the one before.
const LIFE: [(&str, &str); 4] = [
    ("csi.v1.Controller/CreateVolume", "PersistentVolumeClaim.provision"),
    ATTACH,
    ("csi.v1.Controller/ControllerUnpublishVolume", "VolumeAttachment.detach"),
    ("csi.v1.Controller/DeleteVolume", "PersistentVolume.delete"),
];
/// Stands in for the pages of Jaeger, which are no part of its Go module.
const PAGE: &str = include_str!("trace.html");

/// What takes the traces.
pub enum Traces {
    /// A receiver in this process.
    Here(OtlpReceiver),
    /// A real Jaeger.
    Jaeger(Box<Served>),
}

/// A Jaeger, and the folder with its page.
pub struct Served {
    jaeger: Jaeger,
    _folder: StateFolder,
}

impl Traces {
    /// Starts what takes the traces.
    pub async fn start(with_jaeger: bool, say: Say) -> Result<Self> {
        if !with_jaeger {
            return Ok(Self::Here(OtlpReceiver::http().await));
        }
        say.step("Jaeger");
        say.line("The real program, with config/jaeger/jaeger.yaml; it is built once, which takes several minutes.");
        let folder = StateFolder::create()?;
        write_private(&folder.path().join("index.html"), PAGE).await?;
        let assets = folder.path().display();
        let jaeger = Jaeger::start_with(&[format!("--set=extensions.jaeger_query.ui.assets_path={assets}")]).await?;
        say.line(format!("Jaeger answers on {}", jaeger.url()));
        Ok(Self::Jaeger(Box::new(Served {
            jaeger,
            _folder: folder,
        })))
    }

    /// `host:port` where a control plane of the demonstration sends its spans, if it is to trace at all.
    pub fn collector(&self) -> Option<String> {
        match self {
            Self::Here(_) => None,
            Self::Jaeger(served) => Some(served.jaeger.otlp_grpc()),
        }
    }

    /// Options with which the operator sends its traces here.
    pub fn of(&self, options: OperatorOptions) -> OperatorOptions {
        let (endpoint, protocol) = match self {
            Self::Here(receiver) => (receiver.endpoint(), "http/protobuf"),
            Self::Jaeger(served) => (format!("http://{}", served.jaeger.otlp_grpc()), "grpc"),
        };
        options
            .variable("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            .variable("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
            .variable("OTEL_BSP_SCHEDULE_DELAY", "200")
    }

    /// Waits for the trace of the first volume's attach and prints it.
    pub async fn show(&self, say: Say) -> Result<()> {
        let Some((volume, node)) = plan::volumes().next() else {
            return Ok(());
        };
        match self {
            Self::Here(receiver) => {
                say.step(format!(
                    "Trace of attaching {} to {node}, received by OTLP",
                    volume.name
                ));
                say.line(received(receiver, ATTACH.0, volume.name).await?);
            }
            Self::Jaeger(served) => {
                let jaeger = &served.jaeger;
                say.step(format!(
                    "Trace of attaching {} to {node}, as Jaeger has it",
                    volume.name
                ));
                let trace = found(jaeger, ATTACH, volume.name).await?;
                say.line(timeline::render(&trace));
                say.line(format!("The trace: {}", jaeger.page_of(&trace.id)));
                say.line(format!("As JSON:   {}/api/traces/{}", jaeger.url(), trace.id));
            }
        }
        Ok(())
    }

    /// Prints the traces of the life of a volume, from the first call to the last.
    pub async fn show_life(&self, volume: &str, say: Say) -> Result<()> {
        say.step(format!(
            "The life of {volume} as traces: made, attached, detached, deleted"
        ));
        for life in LIFE {
            match self {
                Self::Here(receiver) => say.line(received(receiver, life.0, volume).await?),
                Self::Jaeger(served) => {
                    let trace = found(&served.jaeger, life, volume).await?;
                    say.line(timeline::render(&trace));
                    say.line(format!("The trace: {}", served.jaeger.page_of(&trace.id)));
                }
            }
        }
        Ok(())
    }

    /// Tells the user where the traces are.
    pub async fn tell_where(&self, say: Say) -> Result<()> {
        let Self::Jaeger(served) = self else { return Ok(()) };
        let jaeger = &served.jaeger;
        say.line(format!("Jaeger: {}", jaeger.url()));
        for (volume, _) in plan::volumes() {
            let trace = found(jaeger, ATTACH, volume.name).await?;
            say.line(format!(
                "  {} was attached in {}",
                volume.name,
                jaeger.page_of(&trace.id)
            ));
        }
        Ok(())
    }
}

async fn received(receiver: &OtlpReceiver, call: &str, volume: &str) -> Result<String> {
    let complete = |spans: &[_]| tree::trace_of(spans, call, volume).is_some();
    let spans = receiver.wait_for_spans(WITHIN, complete).await;
    let trace = tree::trace_of(&spans, call, volume).ok_or_else(|| Error::TimedOut {
        what: format!("a trace with {call} for {volume}"),
        limit: WITHIN,
        last: format!("{} spans of {}", spans.len(), names::SERVICE_NAME),
    })?;
    Ok(tree::render(&trace))
}

/// The trace of a volume with a call and a root, once it is complete.
async fn found(jaeger: &Jaeger, (call, root): (&str, &str), volume: &str) -> Result<Trace> {
    let tags = [("k8s.persistentvolume.name", volume)];
    let is_complete = |trace: &Trace| {
        let roots = trace.roots();
        roots.iter().any(|span| span.name == root) && !trace.named(call).is_empty()
    };
    let search = (names::SERVICE_NAME, &tags[..]);
    let any = |traces: &[Trace]| traces.iter().any(is_complete);
    let traces = jaeger.wait_for_search(search, root, WITHIN, any).await?;
    let complete = traces.into_iter().find(is_complete);
    complete.ok_or_else(|| Error::Other(format!("no trace for {volume}")))
}
