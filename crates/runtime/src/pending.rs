//! What may not be there to wait for.

/// Waits for what there is to wait for; without that it never ends.
pub(crate) async fn or_never<F: Future>(awaited: Option<F>) -> F::Output {
    match awaited {
        Some(awaited) => awaited.await,
        None => std::future::pending().await,
    }
}
