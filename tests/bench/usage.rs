//! What the API server counted.

use std::collections::BTreeMap;
use std::fmt;

use http::Request;
use kube::Client;

use crate::support::{Error, Result};

/// The resources that an attacher has to do with. Requests of the API server to itself are about others.
const RESOURCES: [&str; 7] = [
    "volumeattachments",
    "persistentvolumes",
    "csinodes",
    "csidrivers",
    "attacherconfigs",
    "events",
    "leases",
];

/// Requests by what they ask for, and open watches.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Requests that ended, by verb and resource.
    pub requests: BTreeMap<(String, String), u64>,
    /// Watches that are open, by resource.
    pub watches: BTreeMap<String, u64>,
}

impl Usage {
    /// Asks the API server.
    pub async fn read(client: &Client) -> Result<Self> {
        Ok(Self::parse(&metrics(client).await?))
    }

    fn parse(text: &str) -> Self {
        let mut usage = Self::default();
        for line in text.lines() {
            let Some((name, rest)) = line.split_once('{') else {
                continue;
            };
            let label = |label: &str| {
                let (_, rest) = rest.split_once(&format!("{label}=\""))?;
                rest.split_once('"').map(|(value, _)| value)
            };
            let (Some(verb), Some(resource)) = (label("verb"), rest.split_once(",resource=\"")) else {
                continue;
            };
            let resource = resource.1.split_once('"').map_or("", |(value, _)| value);
            if !RESOURCES.contains(&resource) {
                continue;
            }
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "counters of this run are small"
            )]
            let value = line
                .rsplit(' ')
                .next()
                .and_then(|text| text.parse::<f64>().ok())
                .unwrap_or_default() as u64;
            match name {
                // The benchmark makes and deletes the objects themselves.
                "apiserver_request_total" if !(verb == "DELETE" || verb == "POST" && resource != "events") => {
                    *usage
                        .requests
                        .entry((verb.to_owned(), resource.to_owned()))
                        .or_default() += value;
                }
                "apiserver_longrunning_requests" if verb == "WATCH" => {
                    *usage.watches.entry(resource.to_owned()).or_default() += value;
                }
                _ => {}
            }
        }
        usage
    }

    /// The requests since `before`, and the watches that were opened until `loaded`.
    pub fn since(&self, before: &Self, loaded: &Self) -> Self {
        let difference = |(what, count): (&(String, String), &u64)| {
            let earlier = before.requests.get(what).copied().unwrap_or_default();
            (what.clone(), count.saturating_sub(earlier))
        };
        Self {
            requests: self.requests.iter().map(difference).collect(),
            watches: loaded
                .watches
                .iter()
                .map(|(resource, count)| {
                    let earlier = before.watches.get(resource).copied().unwrap_or_default();
                    (resource.clone(), count.saturating_sub(earlier))
                })
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }

    /// All watches that are open.
    pub fn watches(&self) -> u64 {
        self.watches.values().sum()
    }

    /// How many requests of these verbs and resources there were.
    pub fn sum(&self, of: impl Fn(&str, &str) -> bool) -> u64 {
        let mine = self.requests.iter().filter(|((verb, resource), _)| of(verb, resource));
        mine.map(|(_, count)| count).sum()
    }
}

/// All requests that ended so far, by verb and resource, such as "PATCH persistentvolumes/status".
pub async fn all_requests(client: &Client) -> Result<BTreeMap<String, i64>> {
    let mut all = BTreeMap::new();
    for line in metrics(client).await?.lines() {
        let Some(rest) = line.strip_prefix("apiserver_request_total{") else {
            continue;
        };
        let label = |label: &str| {
            let (_, rest) = rest.split_once(&format!("{label}=\""))?;
            rest.split_once('"').map(|(value, _)| value)
        };
        let (Some(verb), Some(resource), Some(sub)) = (label("verb"), label(",resource"), label("subresource")) else {
            continue;
        };
        let separator = if sub.is_empty() { "" } else { "/" };
        let count = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok());
        #[allow(clippy::cast_possible_truncation, reason = "counters of this run are small")]
        let count = count.unwrap_or_default() as i64;
        *all.entry(format!("{verb} {resource}{separator}{sub}")).or_default() += count;
    }
    Ok(all)
}

async fn metrics(client: &Client) -> Result<String> {
    let request = Request::get("/metrics").body(Vec::new());
    let request = request.map_err(|error| Error::Other(error.to_string()))?;
    let text = client.request_text(request).await;
    text.map_err(|error| Error::Other(format!("metrics of the API server: {error}")))
}

impl fmt::Display for Usage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.requests.iter().filter(|(_, count)| **count > 0);
        let parts: Vec<String> = seen
            .map(|((verb, resource), count)| format!("{verb} {resource} {count}"))
            .collect();
        write!(formatter, "{}", parts.join(", "))
    }
}
