//! A GET over plain HTTP, as little as tests need of it.

use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::error::{Context, Error, Result};

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Status and body of a GET of this URL.
pub async fn get(url: &str) -> Result<(u16, String)> {
    get_as(url, "*/*").await
}

/// As [`get`], for a body of this media type.
pub async fn get_as(url: &str, accept: &str) -> Result<(u16, String)> {
    let what = || format!("GET {url}");
    let request = http::Request::get(url).header(http::header::ACCEPT, accept);
    let request = request.body(Empty::new()).while_trying(what)?;
    let client: Client<_, Empty<&[u8]>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = async {
        let answer = client.request(request).await.while_trying(what)?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.while_trying(what)?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    let answer = tokio::time::timeout(LIMIT, answer).await;
    answer.unwrap_or_else(|_| Err(Error::Other(format!("{}: no answer within {LIMIT:?}", what()))))
}

/// The body of a GET that must be answered with a success.
pub async fn get_body(url: &str, accept: &str) -> Result<String> {
    match get_as(url, accept).await? {
        (200..=299, body) => Ok(body),
        (status, body) => Err(Error::Other(format!("GET {url}: {status}: {body}"))),
    }
}

/// A text as part of a query.
pub fn encode(text: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encoded).collect()
}
