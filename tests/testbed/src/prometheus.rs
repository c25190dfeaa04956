//! A real Prometheus and promtool, which `tests/prometheus/fetch` gets.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output as Ended, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::controlplane::ports;
use super::controlplane::watchdog::{Output, Watched};
use super::error::{Error, Result};
use super::http::{encode, get_body};
pub use crate::of_repository;

const LIMIT: Duration = Duration::from_mins(2);

/// The folder with the two programs. The first call on a machine downloads them.
pub async fn programs() -> Result<PathBuf> {
    let script = of_repository("tests/prometheus/fetch");
    let run = move || Command::new(script).stderr(Stdio::inherit()).output();
    let ended = tokio::task::spawn_blocking(run).await??;
    if !ended.status.success() {
        return Err(Error::Other(format!("tests/prometheus/fetch: {}", ended.status)));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&ended.stdout).trim()))
}

/// Runs promtool with these arguments and this input; whether it is content, and what it says.
pub async fn promtool(arguments: &[&str], input: &str) -> Result<(bool, String)> {
    let program = programs().await?.join("promtool");
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let input = input.to_owned();
    let run = move || -> std::io::Result<Ended> {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // It may end without reading all of it.
            drop(stdin.write_all(input.as_bytes()));
        }
        child.wait_with_output()
    };
    let ended = tokio::task::spawn_blocking(run).await??;
    let said = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    Ok((ended.status.success(), said.concat()))
}

/// A GET over HTTP, with this `Accept` header; the body of a 200.
pub async fn get(address: SocketAddr, path: &str, accept: &str) -> Result<String> {
    get_body(&format!("http://{address}{path}"), accept).await
}

/// A running Prometheus that scrapes one target each second, by the alerts that ship. Dropping it kills it.
pub struct Prometheus {
    process: Watched,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts it, and waits until it answers. The scrape job is named as in the documentation.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let program = programs().await?.join("prometheus");
        let folder = tempfile::tempdir()?;
        let alerts = of_repository("config/prometheus/alerts.yaml");
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [\"{}\"]\n\
            scrape_configs:\n  - job_name: csi-attacher-operator\n    static_configs: [{{targets: [\"{target}\"]}}]\n",
            alerts.display()
        );
        let file = folder.path().join("prometheus.yaml");
        fs::write(&file, config)?;
        let address = SocketAddr::from(([127, 0, 0, 1], ports::free_port()?));
        let arguments = [
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", folder.path().join("data").display()),
            format!("--web.listen-address={address}"),
            "--enable-feature=exemplar-storage".to_owned(),
        ];
        let log = folder.path().join("prometheus.log");
        let process = Watched::spawn("prometheus", &program, &arguments, &log, Output::Log)?;
        let started = Self {
            process,
            address,
            _folder: folder,
        };
        let ready = async || get(address, "/-/ready", "*/*").await.map(Some);
        started.wait_for("ready", ready).await?;
        Ok(started)
    }

    /// Asks again and again until there is an answer; Prometheus tells nobody of what it scraped.
    pub async fn wait_for<T>(&self, what: &str, ask: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
        let started = Instant::now();
        loop {
            let last = match ask().await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => format!("not within {LIMIT:?}"),
                Err(error) => error.to_string(),
            };
            if started.elapsed() >= LIMIT {
                let log = self.process.log_tail();
                return Err(Error::Other(format!("{what}: {last}; log:\n{log}")));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The `data` of an answer of the HTTP API; `parameters` are encoded here.
    pub async fn api(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let pairs = parameters.iter().map(|(key, value)| format!("{key}={}", encode(value)));
        let pairs: Vec<String> = pairs.collect();
        let body = get(self.address, &format!("/api/v1/{path}?{}", pairs.join("&")), "*/*").await?;
        let answer: Value = serde_json::from_str(&body)?;
        Ok(answer["data"].clone())
    }

    /// What a query returns now.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let data = self.api("query", &[("query", expression)]).await?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }
}
