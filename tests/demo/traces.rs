//! Where the traces of the demonstration go: to a receiver in this process, or to a Jaeger of its own.

use std::time::Duration;

use csi_attacher_telemetry::names;

use crate::plan;
use crate::processes::write_private;
use crate::say::Say;
use crate::support::controlplane::watchdog::StateFolder;
use crate::support::jaeger::{Trace, tree};
use crate::support::otlp::{Attribute, OtlpReceiver, ReceivedSpan};
use crate::support::{Error, Jaeger, OperatorOptions, Result};

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
        let source = match self {
            Self::Here(_) => "received by OTLP",
            Self::Jaeger(_) => "as Jaeger has it",
        };
        say.step(format!("Trace of attaching {} to {node}, {source}", volume.name));
        let trace = self.show_trace(ATTACH, volume.name, say).await?;
        if let Self::Jaeger(served) = self {
            say.line(format!("As JSON:   {}/api/traces/{}", served.jaeger.url(), trace.id));
        }
        Ok(())
    }

    /// Prints the traces of the life of a volume, from the first call to the last.
    pub async fn show_life(&self, volume: &str, say: Say) -> Result<()> {
        say.step(format!(
            "The life of {volume} as traces: made, attached, detached, deleted"
        ));
        for life in LIFE {
            self.show_trace(life, volume, say).await?;
        }
        Ok(())
    }

    /// Waits for a trace of a volume, and prints it.
    async fn show_trace(&self, life: (&str, &str), volume: &str, say: Say) -> Result<Trace> {
        let trace = match self {
            Self::Here(receiver) => received(receiver, life, volume).await?,
            Self::Jaeger(served) => found(&served.jaeger, life, volume).await?,
        };
        say.line(tree::render(&trace));
        if let Self::Jaeger(served) = self {
            say.line(format!("The trace: {}", served.jaeger.page_of(&trace.id)));
        }
        Ok(trace)
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

/// As [`found`], of what was received.
async fn received(receiver: &OtlpReceiver, life: (&str, &str), volume: &str) -> Result<Trace> {
    let complete = |spans: &[ReceivedSpan]| {
        let name = Some(Attribute::from(volume));
        let of_volume = spans
            .iter()
            .filter(|span| span.attributes.get("k8s.persistentvolume.name") == name.as_ref());
        let mut traces = of_volume.map(|span| Trace::received(spans, &span.trace_id));
        traces.find(|trace| is_complete(trace, life))
    };
    let spans = receiver.wait_for_spans(WITHIN, |spans| complete(spans).is_some()).await;
    complete(&spans).ok_or_else(|| Error::TimedOut {
        what: format!("a trace with {} for {volume}", life.0),
        limit: WITHIN,
        last: format!("{} spans of {}", spans.len(), names::SERVICE_NAME),
    })
}

/// Whether the root is there, which is exported last, and the call.
fn is_complete(trace: &Trace, (call, root): (&str, &str)) -> bool {
    trace.roots().iter().any(|span| span.name == root) && !trace.named(call).is_empty()
}

/// The trace of a volume with a call and a root, once it is complete.
async fn found(jaeger: &Jaeger, life: (&str, &str), volume: &str) -> Result<Trace> {
    let tags = [("k8s.persistentvolume.name", volume)];
    let search = (names::SERVICE_NAME, &tags[..]);
    let any = |traces: &[Trace]| traces.iter().any(|trace| is_complete(trace, life));
    let traces = jaeger.wait_for_search(search, life.1, WITHIN, any).await?;
    let complete = traces.into_iter().find(|trace| is_complete(trace, life));
    complete.ok_or_else(|| Error::Other(format!("no trace for {volume}")))
}
