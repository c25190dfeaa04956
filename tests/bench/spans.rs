//! Spans without an operator around them: what one costs when tracing is off and on, and what 100,000 that nobody takes
//! leave in memory. Runs in a process of its own ([`crate::helper`]).

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use csi_attacher_telemetry::logs::LogOptions;
use csi_attacher_telemetry::names::{attr, span};
use csi_attacher_telemetry::{SpanKind, SpanOptions, Telemetry, Tracer};
use serde::{Deserialize, Serialize};

use crate::process;
use crate::support::otlp::OtlpReceiver;
use crate::support::{Error, Result};

/// Attempts that are timed when tracing is off.
const DISABLED: u32 = 1_000_000;
/// Attempts that are timed when it is on; each has [`CHILDREN`] spans more.
const ENABLED: u32 = 20_000;
const CHILDREN: u32 = 4;

/// What came out.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Micro {
    /// One attempt, its root and its children, with tracing off.
    pub disabled: Duration,
    /// The same with tracing on, to a collector that answers nothing.
    pub enabled: Duration,
    /// KiB resident with a tenth of the spans ended, when the queue is full, and with all of them.
    pub resident: [u64; 2],
}

/// Spans that end in the run with tracing on.
pub const SPANS: u32 = ENABLED * (CHILDREN + 1);

pub async fn measure() -> Result<Micro> {
    let disabled = timed(&Tracer::disabled(), DISABLED);
    let receiver = OtlpReceiver::silent().await;
    let environment = BTreeMap::from([
        ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), receiver.endpoint()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL".to_owned(), "grpc".to_owned()),
    ]);
    let log = LogOptions {
        level: "off".to_owned(),
        ..LogOptions::default()
    };
    let (telemetry, guard) = Telemetry::init(&environment, &log).map_err(|error| Error::Other(error.to_string()))?;
    let tracer = telemetry.tracer.clone();
    let tenth = ENABLED / 10;
    timed(&tracer, tenth);
    let full = process::memory(std::process::id())?.now;
    let enabled = timed(&tracer, ENABLED - tenth);
    let all = process::memory(std::process::id())?.now;
    guard.shutdown(Duration::from_millis(100)).await;
    Ok(Micro {
        disabled,
        enabled,
        resident: [full, all],
    })
}

fn timed(tracer: &Tracer, attempts: u32) -> Duration {
    let name = "pvc-0fbd2f5e-6b6b-4f0f-9d0e-6f2b7f8a9c1d".to_owned();
    let started = Instant::now();
    for _ in 0..attempts {
        let mut root = black_box(tracer).open(SpanOptions::new(span::ATTACH_ATTEMPT, SpanKind::Consumer));
        for key in [
            attr::NODE_NAME,
            attr::VOLUME_ATTACHMENT_NAME,
            attr::CSI_VOLUME_ID,
            attr::PERSISTENT_VOLUME_NAME,
        ] {
            root.set(key, black_box(&name));
        }
        for _ in 0..CHILDREN {
            let mut child = root.child("csi.v1.Controller/ControllerPublishVolume", SpanKind::Client);
            child.set(attr::RPC_METHOD, "csi.v1.Controller/ControllerPublishVolume");
            child.end();
        }
        root.end();
    }
    started.elapsed() / attempts
}
