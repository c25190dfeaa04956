//! A GET over plain HTTP, as little as tests need of it.

use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::error::{Error, Result};

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Status and body of a GET of this URL.
pub async fn get(url: &str) -> Result<(u16, String)> {
    get_as(url, "*/*").await
}

/// As [`get`], for a body of this media type.
pub async fn get_as(url: &str, accept: &str) -> Result<(u16, String)> {
    let other = |error: String| Error::Other(format!("GET {url}: {error}"));
    let request = http::Request::get(url)
        .header(http::header::ACCEPT, accept)
        .body(Empty::new())
        .map_err(|error| other(error.to_string()))?;
    let client: Client<_, Empty<&[u8]>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = async {
        let answer = client
            .request(request)
            .await
            .map_err(|error| other(error.to_string()))?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await;
        let body = body.map_err(|error| other(error.to_string()))?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    let answer = tokio::time::timeout(LIMIT, answer).await;
    answer.unwrap_or_else(|_| Err(other(format!("no answer within {LIMIT:?}"))))
}

/// A text as part of a query.
pub fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.extend(['%', hexadecimal(byte >> 4), hexadecimal(byte & 15)]);
        }
    }
    encoded
}

fn hexadecimal(digit: u8) -> char {
    char::from_digit(u32::from(digit), 16).map_or('0', |digit| digit.to_ascii_uppercase())
}
