//! A real Jaeger on loopback ports, with the configuration that `config/jaeger` ships and the traces in its memory, and
//! what its HTTP API answers.

pub mod tree;
mod types;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::controlplane::watchdog::{Output, StateFolder, Watched};
use super::controlplane::{ports, programs};
use super::error::{Error, Result};
use super::http::{encode, get, get_body};

use types::Answer;
pub use types::{Span, Trace};

/// The configuration that ships; the ports are given apart.
pub const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/jaeger/jaeger.yaml");
/// Jaeger tells nobody when spans arrive, so those who wait for some ask again and again.
const POLL: Duration = Duration::from_millis(100);
/// How many traces one answer may hold.
const MOST: usize = 5000;

/// A running Jaeger. Dropping it kills it and forgets the traces.
pub struct Jaeger {
    ports: Ports,
    _process: Watched,
    _folder: StateFolder,
}

#[derive(Clone, Copy)]
struct Ports {
    otlp_grpc: u16,
    otlp_http: u16,
    query: u16,
    query_grpc: u16,
}

async fn is_ready(ports: Ports) -> Result<()> {
    ports::takes_connections(ports.otlp_grpc).await?;
    ports::takes_connections(ports.otlp_http).await?;
    let services = format!("http://127.0.0.1:{}/api/services", ports.query);
    get_body(&services, "*/*").await.map(drop)
}

impl Jaeger {
    /// The program, built on first use, which takes minutes.
    pub async fn program() -> Result<PathBuf> {
        let [program] = programs::locate(["jaeger"]).await?;
        Ok(program)
    }

    /// Starts it and waits until it takes spans and answers questions.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// Starts it with further arguments.
    pub async fn start_with(arguments: &[String]) -> Result<Self> {
        let program = Self::program().await?;
        ports::retry(|| Self::start_once(&program, arguments)).await
    }

    async fn start_once(program: &Path, arguments: &[String]) -> Result<Self> {
        let folder = StateFolder::create()?;
        let ports = Ports {
            otlp_grpc: ports::free_port()?,
            otlp_http: ports::free_port()?,
            query: ports::free_port()?,
            query_grpc: ports::free_port()?,
        };
        let set = |key: &str, port: u16| format!("--set={key}.endpoint=127.0.0.1:{port}");
        let mut all = vec![
            format!("--config={CONFIG}"),
            set("receivers.otlp.protocols.grpc", ports.otlp_grpc),
            set("receivers.otlp.protocols.http", ports.otlp_http),
            set("extensions.jaeger_query.http", ports.query),
            set("extensions.jaeger_query.grpc", ports.query_grpc),
        ];
        all.extend_from_slice(arguments);
        let log = folder.path().join("jaeger.log");
        let mut process = Watched::spawn("jaeger", program, &all, &log, Output::Log)?;
        process.wait_ready(|| is_ready(ports)).await?;
        Ok(Self {
            ports,
            _process: process,
            _folder: folder,
        })
    }

    /// `host:port` for OTLP over gRPC.
    pub fn otlp_grpc(&self) -> String {
        format!("127.0.0.1:{}", self.ports.otlp_grpc)
    }

    /// Where its pages and its HTTP API are.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.query)
    }

    pub fn page_of(&self, trace_id: &str) -> String {
        format!("{}/trace/{trace_id}", self.url())
    }

    /// The body of a GET of the HTTP API, which must be answered 200.
    pub async fn get(&self, path: &str) -> Result<String> {
        get_body(&format!("{}{path}", self.url()), "*/*").await
    }

    /// What is there of a trace; without spans if it is unknown.
    pub async fn trace(&self, trace_id: &str) -> Result<Trace> {
        let path = format!("{}/api/traces/{trace_id}", self.url());
        let body = match get(&path).await? {
            (200, body) => body,
            (404, _) => return Ok(Trace::unknown(trace_id)),
            (status, body) => return Err(Error::Other(format!("Jaeger: GET {path}: {status} {body}"))),
        };
        let traces = serde_json::from_str::<Answer>(&body)?.traces();
        Ok(traces.into_iter().next().unwrap_or_else(|| Trace::unknown(trace_id)))
    }

    /// The traces with a span of this service that has all of these tags.
    pub async fn find(&self, service: &str, tags: &[(&str, &str)]) -> Result<Vec<Trace>> {
        let body = self.get(&Self::query(service, tags)).await?;
        Ok(serde_json::from_str::<Answer>(&body)?.traces())
    }

    /// The path and query of the HTTP API for a search.
    pub fn query(service: &str, tags: &[(&str, &str)]) -> String {
        let tags: serde_json::Map<_, _> = tags
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect();
        let tags = encode(&serde_json::Value::Object(tags).to_string());
        format!(
            "/api/traces?service={}&tags={tags}&lookback=1h&limit={MOST}",
            encode(service)
        )
    }

    /// Waits until a trace is as wanted.
    pub async fn wait_for_trace(
        &self,
        trace_id: &str,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Trace) -> bool,
    ) -> Result<Trace> {
        let arrival = self.wait_for_arrival(trace_id, what, limit, wanted);
        arrival.await.map(|(trace, _)| trace)
    }

    /// As [`Jaeger::wait_for_trace`]; also tells when it was last asked while the trace was not as wanted: at that time it had not
    /// arrived, however long this process stood still since.
    pub async fn wait_for_arrival(
        &self,
        trace_id: &str,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Trace) -> bool,
    ) -> Result<(Trace, Option<Timestamp>)> {
        let what = format!("trace {trace_id} with {what}");
        let ask = async || Ok(vec![self.trace(trace_id).await?]);
        let found = self.wait_for(&what, limit, ask, |traces| traces.iter().all(&wanted));
        found.await.map(|(mut traces, in_vain)| (traces.remove(0), in_vain))
    }

    /// Waits until the traces that a search finds are as wanted.
    pub async fn wait_for_search(
        &self,
        (service, tags): (&str, &[(&str, &str)]),
        what: &str,
        limit: Duration,
        wanted: impl Fn(&[Trace]) -> bool,
    ) -> Result<Vec<Trace>> {
        let what = format!("{what} among the traces of {service} with {tags:?}");
        let found = self.wait_for(&what, limit, async || self.find(service, tags).await, wanted);
        found.await.map(|(traces, _)| traces)
    }

    async fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        ask: impl AsyncFn() -> Result<Vec<Trace>>,
        wanted: impl Fn(&[Trace]) -> bool,
    ) -> Result<(Vec<Trace>, Option<Timestamp>)> {
        let started = Instant::now();
        let mut in_vain = None;
        loop {
            let asked = Timestamp::now();
            let traces = ask().await?;
            if wanted(&traces) {
                return Ok((traces, in_vain));
            }
            in_vain = Some(asked);
            if started.elapsed() > limit {
                let last: Vec<String> = traces.iter().map(tree::render).collect();
                return Err(Error::TimedOut {
                    what: what.to_owned(),
                    limit,
                    last: format!("{} traces:\n{}", traces.len(), last.join("\n")),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }
}
