//! Processes that the benchmark starts of itself: a collector whose CPU time can be told from that of the benchmark, a
//! load that takes a share of a core, and spans in a process of their own, whose memory is theirs.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use tonic::codec::CompressionEncoding;

use super::process;
use super::spans::{self, Micro};
use super::support::controlplane::watchdog::{Output, Watched};
use super::support::{Error, Result};

/// Words by which this program is started as a helper.
pub const COLLECTOR: &str = "--collector";
pub const BURN: &str = "--burn";
pub const SPANS: &str = "--spans";
/// How long a load takes turns between work and rest.
const PERIOD: Duration = Duration::from_millis(10);

/// A helper that runs; dropping it ends it.
pub struct Helper {
    process: Watched,
    /// What it said first.
    pub said: String,
    _folder: tempfile::TempDir,
}

impl Helper {
    fn start(arguments: &[String]) -> Result<Self> {
        let other = |error: std::io::Error| Error::Other(error.to_string());
        let program = std::env::current_exe().map_err(other)?;
        let folder = tempfile::tempdir().map_err(other)?;
        let log = folder.path().join("helper.log");
        let mut process = Watched::spawn("helper", Path::new(&program), arguments, &log, Output::Pipe)?;
        let mut said = String::new();
        if let Some(output) = process.take_stdout() {
            BufReader::new(output).read_line(&mut said).map_err(other)?;
        }
        Ok(Self {
            process,
            said: said.trim().to_owned(),
            _folder: folder,
        })
    }

    /// A collector that takes all spans over gRPC and keeps none; `said` is its endpoint.
    pub fn collector() -> Result<Self> {
        Self::start(&[COLLECTOR.to_owned()])
    }

    /// A process that burns this share of a core.
    pub fn burn(share: f64) -> Result<Self> {
        Self::start(&[BURN.to_owned(), share.to_string()])
    }

    /// What spans cost without an operator around them.
    pub fn spans() -> Result<Micro> {
        let helper = Self::start(&[SPANS.to_owned()])?;
        let said = &helper.said;
        serde_json::from_str(said).map_err(|error| Error::Other(format!("the helper for spans said {said:?}: {error}")))
    }

    /// CPU time so far.
    pub fn cpu(&self) -> Result<Duration> {
        process::group_cpu(self.process.process_group())
    }
}

struct Sink;

#[tonic::async_trait]
impl TraceService for Sink {
    async fn export(
        &self,
        _: tonic::Request<ExportTraceServiceRequest>,
    ) -> std::result::Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Is the collector, until it is ended.
pub async fn collect() -> Result<()> {
    let failed = |error: String| Error::Other(format!("collector: {error}"));
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.map_err(|error| failed(error.to_string()))?;
    let address = listener.local_addr().map_err(|error| failed(error.to_string()))?;
    say(&format!("http://{address}"))?;
    let service = TraceServiceServer::new(Sink).accept_compressed(CompressionEncoding::Gzip);
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(service);
    server
        .serve_with_incoming(incoming)
        .await
        .map_err(|error| failed(error.to_string()))
}

/// Measures spans, and says what came out.
pub async fn spans() -> Result<()> {
    let micro = spans::measure().await?;
    say(&serde_json::to_string(&micro).map_err(|error| Error::Other(error.to_string()))?)
}

/// Is the load, until it is ended.
pub fn burn(share: f64) -> Result<()> {
    say("burning")?;
    let work = PERIOD.mul_f64(share.clamp(0.0, 1.0));
    loop {
        let started = Instant::now();
        while started.elapsed() < work {
            std::hint::spin_loop();
        }
        std::thread::sleep(PERIOD.saturating_sub(started.elapsed()));
    }
}

fn say(what: &str) -> Result<()> {
    let mut output = std::io::stdout();
    let said = writeln!(output, "{what}").and_then(|()| output.flush());
    said.map_err(|error| Error::Other(error.to_string()))
}
