//! The control socket: one command per line of JSON, one line of JSON as the answer.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::control::parse_command;
use super::handle::MockHandle;
use super::server::{ListenError, remove_stale_socket};

/// Longest line in bytes; a longer one ends the connection.
const LINE_LIMIT: u64 = 1 << 20;

/// A control socket that is served until it is dropped; removes its file then.
pub(super) struct ControlSocket {
    path: PathBuf,
    _stop: DropGuard,
}

impl ControlSocket {
    /// Listens and serves from now on. A socket file whose process is gone is replaced.
    pub fn start(path: &Path, handle: &MockHandle) -> Result<Self, ListenError> {
        remove_stale_socket(path)?;
        let failed = |source| ListenError::Io {
            endpoint: path.display().to_string(),
            source,
        };
        let listener = UnixListener::bind(path).map_err(failed)?;
        let stop = CancellationToken::new();
        let (token, handle) = (stop.clone(), handle.clone());
        tokio::spawn(async move { token.run_until_cancelled(accept(listener, handle, token.clone())).await });
        Ok(Self {
            path: path.to_owned(),
            _stop: stop.drop_guard(),
        })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the control socket");
        }
    }
}

async fn accept(listener: UnixListener, handle: MockHandle, stop: CancellationToken) {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                let (handle, stop) = (handle.clone(), stop.clone());
                tokio::spawn(async move { stop.run_until_cancelled(serve(connection, handle)).await });
            }
            Err(error) => {
                tracing::warn!(%error, "the control socket is closed");
                return;
            }
        }
    }
}

async fn serve(connection: UnixStream, handle: MockHandle) {
    let (reader, mut writer) = connection.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = String::new();
        match (&mut reader).take(LINE_LIMIT).read_line(&mut line).await {
            Ok(length) if length > 0 && line.ends_with('\n') => {}
            // The caller is done, or the line is too long or no text.
            _ => return,
        }
        if writer
            .write_all(format!("{}\n", answer(&handle, &line)).as_bytes())
            .await
            .is_err()
        {
            return;
        }
    }
}

fn answer(handle: &MockHandle, line: &str) -> Value {
    match parse_command(line).and_then(|command| handle.apply(command)) {
        Ok(None) => json!({"ok": true}),
        Ok(Some(value)) => json!({"ok": true, "result": value}),
        Err(error) => json!({"ok": false, "error": error.to_string()}),
    }
}
