//! All pages of ListVolumes, whatever their number, and no end of them that is not one.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

use crate::csi::ListVolumes;
use crate::decide::reconcile::Listing;
use crate::telemetry::Span;
use crate::telemetry::names::code_camel_case;
use csi_attacher_runtime::fence::{CallFailure, FencedClient};

/// More pages than any backend has, even if each has one volume.
pub(in crate::driver) const MAX_PAGES: usize = 100_000;
/// A page may be empty and not the last one, but so many of them in a row lead nowhere.
pub(in crate::driver) const MAX_EMPTY_PAGES: usize = 1_000;

/// How many pages' time a listing may take.
const PAGES_OF_TIME: u32 = 10;

/// What the call for a page is made with: the client, and the deadline.
pub(in crate::driver) type PageCall = (FencedClient, Duration);

#[derive(Clone, Copy, Debug)]
pub(in crate::driver) struct ListLimits {
    /// Most entries of a page; 0 lets the driver choose.
    pub max_entries: i32,
    /// How long all pages together may take.
    pub whole: Duration,
}

impl ListLimits {
    /// By the settings of the driver at the start: how many entries a page may have, and how long it may take.
    pub fn new(max_entries: i32, deadline: Duration) -> Self {
        Self {
            max_entries,
            whole: deadline.saturating_mul(PAGES_OF_TIME),
        }
    }
}

/// Why a listing did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(in crate::driver) enum ListError {
    /// A page could not be had, or the listing was cut off because the Lease of the driver is not held any more.
    #[error("ListVolumes: {0}")]
    Call(#[from] CallFailure),
    #[error("ListVolumes: the driver answered the same next_token twice")]
    RepeatedToken,
    #[error("ListVolumes: no end after {0} pages")]
    TooManyPages(usize),
    #[error("ListVolumes: {0} empty pages in a row, and no end")]
    Empty(usize),
    #[error("ListVolumes: no end after {0} pages in {1} s")]
    TooSlow(usize, u64),
}

impl ListError {
    /// A gRPC code as metrics spell it, or one word of our own.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Call(CallFailure::Driver(error)) => code_camel_case(error.code),
            Self::Call(CallFailure::Lease(_)) => "lease_lost",
            Self::RepeatedToken => "token_repeated",
            Self::TooManyPages(_) | Self::Empty(_) => "pages_without_end",
            Self::TooSlow(..) => "pass_too_long",
        }
    }
}

/// How far a listing has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::driver) struct ListProgress {
    pub pages: usize,
    pub volumes: usize,
}

/// Asks for all pages for these listings, and tells how far it has come. The client and the deadline are taken again for each page: the
/// driver may have been connected again since the last one, and the settings may have changed. Of those for requests there is one at a time
/// for each driver: see [`super::turns`].
pub(in crate::driver) async fn list(
    page_call: impl Fn() -> PageCall,
    limits: ListLimits,
    listings: &mut [Listing],
    progress: &mut ListProgress,
) -> Result<(), ListError> {
    let ends = Instant::now() + limits.whole;
    // Tokens are the driver's choice and may be long; a hash tells as well that one was there before.
    let (hasher, mut tokens) = (RandomState::new(), HashSet::new());
    let (mut token, mut empty) = (String::new(), 0);
    // Pages are in no trace: the caller's span shows what came of all of them.
    let untraced = Span::disabled();
    for pages in 0..MAX_PAGES {
        let (client, deadline) = page_call();
        let call = ListVolumes {
            max_entries: limits.max_entries,
            token: &token,
        };
        let page = timeout_at(ends, client.call(&call, deadline, &untraced)).await;
        let page = page.map_err(|_| ListError::TooSlow(pages, limits.whole.as_secs()))??;
        progress.pages += 1;
        progress.volumes += page.volumes.len();
        for listing in &mut *listings {
            for volume in &page.volumes {
                listing.add(&volume.handle, volume.nodes.as_deref());
            }
        }
        if page.next_token.is_empty() {
            return Ok(());
        }
        if !tokens.insert(hasher.hash_one(&page.next_token)) {
            return Err(ListError::RepeatedToken);
        }
        empty = if page.volumes.is_empty() { empty + 1 } else { 0 };
        if empty >= MAX_EMPTY_PAGES {
            return Err(ListError::Empty(empty));
        }
        token = page.next_token;
    }
    Err(ListError::TooManyPages(MAX_PAGES))
}
