//! Kubeconfigs as client-go reads them, for whoever comes with one: which files count, which of their values, and tokens in
//! files; and what stands around a pod in their place.
//!
//! Must not know who asks: it makes no connection, and what is trusted, and how a proxy is spoken to, is up to the caller.

mod find;
mod load_error;
#[cfg(test)]
mod load_error_tests;
mod pod;
mod proxy;
mod server;
mod settle;
mod token;

pub use find::{Found, find};
pub use load_error::{LoadError, ValueError};
pub use pod::{PodError, pod_config, pod_namespace};
pub use proxy::{choose_proxy, port_of};
pub use server::{ServerError, check_server};
pub use token::{LastToken, TokenError, TokenFile, check_token};
