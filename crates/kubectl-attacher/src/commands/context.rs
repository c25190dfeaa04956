//! What every command starts from.

use kube::Client;

use super::flags::ClusterFlags;
use crate::cli::GlobalOptions;
use crate::error::Result;
use crate::gather::{Reader, Sources, connect, now};
use crate::output::Style;

/// The client and how to print.
pub struct Context {
    /// The client.
    pub client: Client,
    /// Namespace of objects that are named without one.
    pub namespace: String,
    /// How to print.
    pub style: Style,
    /// What the commands that are shown need to ask the same cluster.
    pub flags: ClusterFlags,
}

impl Context {
    /// Connects as kubectl would.
    pub async fn connect(global: &GlobalOptions) -> Result<Self> {
        let (client, namespace) = connect(global).await?;
        Ok(Self {
            client,
            namespace,
            style: Style::of(global.color),
            flags: ClusterFlags::of(global),
        })
    }

    /// Reads of the cluster as it is now.
    pub fn sources(&self) -> Sources {
        Sources::new(Reader::new(self.client.clone()), now())
    }
}
