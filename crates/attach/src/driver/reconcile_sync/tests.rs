//! How a listing is read: all pages, and no end of them.

mod passes;

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher_proto::v1;
use csi_attacher_proto::v1::controller_server::{Controller, ControllerServer};
use csi_attacher_runtime::fence::FencedClient;
use csi_mock_driver::deadline_ms;
use tonic::{Request, Response, Status};

use super::list::{ListError, ListLimits, ListProgress, MAX_EMPTY_PAGES, MAX_PAGES, list};
use super::turns::{ListTurns, Witnesses};
use crate::csi::{CsiClient, DriverConnection};
use crate::decide::reconcile::{DesiredState, Expectation, Listing};
use crate::decide::{ListedEvidence, ListingDoubt};
use crate::driver::simulation::listed_entry;
use crate::telemetry::Metrics;

/// Of each page.
const DEADLINE: Duration = Duration::from_secs(5);
const LIMITS: ListLimits = ListLimits {
    max_entries: 7,
    whole: Duration::from_mins(1),
};

type Answer = Result<v1::ListVolumesResponse, Status>;
/// From the number of the page and the token that was sent to the page.
type Pages = Box<dyn Fn(usize, &str) -> Answer + Send + Sync>;

/// A driver that lists, and does nothing else in time.
struct Lister {
    pages: Pages,
    /// How long the driver takes for a page.
    takes: Duration,
    asked: Mutex<Vec<(i32, String)>>,
    /// How often it was asked to take a volume from a node, which it never answers in time.
    unpublished: Mutex<usize>,
    /// Those of the pages, in milliseconds.
    deadlines: Mutex<Vec<Option<u64>>>,
}

impl Lister {
    fn of(pages: Pages) -> Self {
        Self {
            pages,
            takes: Duration::ZERO,
            asked: Mutex::default(),
            unpublished: Mutex::default(),
            deadlines: Mutex::default(),
        }
    }

    /// One that takes so long for each page.
    fn taking(takes: Duration, pages: Pages) -> Self {
        Self {
            takes,
            ..Self::of(pages)
        }
    }

    fn client(self: &Arc<Self>) -> FencedClient {
        let connection = DriverConnection::in_process(ControllerServer::from_arc(self.clone()));
        FencedClient::new(CsiClient::new(connection, Metrics::default()), None)
    }
}

#[tonic::async_trait]
impl Controller for Lister {
    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        self.deadlines.lock().push(deadline_ms(request.metadata()));
        let request = request.into_inner();
        let answer = {
            let mut asked = self.asked.lock();
            let answer = (self.pages)(asked.len(), &request.starting_token);
            asked.push((request.max_entries, request.starting_token));
            answer
        };
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        answer.map(Response::new)
    }

    async fn controller_unpublish_volume(
        &self,
        _request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        *self.unpublished.lock() += 1;
        Err(Status::deadline_exceeded("the backend goes on"))
    }
}

fn page(volumes: &[(&str, Option<&[&str]>)], next_token: &str) -> v1::ListVolumesResponse {
    let entries = volumes.iter().map(|(handle, nodes)| {
        let nodes = nodes.map(|nodes| nodes.iter().map(ToString::to_string).collect());
        listed_entry(handle, nodes)
    });
    v1::ListVolumesResponse {
        entries: entries.collect(),
        next_token: next_token.to_owned(),
    }
}

fn expected(handle: &str) -> Expectation {
    Expectation {
        name: handle.into(),
        uid: "uid".into(),
        handle: handle.into(),
        node_id: "n".into(),
        former_node_id: None,
        wanted: DesiredState::Published,
    }
}

/// What came of a listing, which of these volumes it contradicts, and how often the driver was asked.
async fn listed(
    pages: Pages,
    handles: &[&str],
) -> (Result<(usize, usize), ListError>, Vec<String>, Vec<(i32, String)>) {
    let lister = Arc::new(Lister::of(pages));
    let expectations: Vec<Expectation> = handles.iter().map(|handle| expected(handle)).collect();
    let mut listing = Listing::about(expectations);
    let client = lister.client();
    let mut progress = ListProgress::default();
    let listings = std::slice::from_mut(&mut listing);
    let outcome = list(|| (client.clone(), DEADLINE), LIMITS, listings, &mut progress)
        .await
        .map(|()| (progress.pages, progress.volumes));
    let wrong = listing.compare().contradicted.into_iter();
    let wrong = wrong.map(|expected| expected.handle.to_string()).collect();
    let asked = lister.asked.lock().clone();
    let deadline = u64::try_from(DEADLINE.as_millis()).ok();
    assert!(lister.deadlines.lock().iter().all(|seen| *seen == deadline));
    (outcome, wrong, asked)
}

#[tokio::test]
async fn every_page_is_asked_for_with_the_token_of_the_one_before() {
    let pages: Pages = Box::new(|_, token| {
        Ok(match token {
            "" => page(&[("a", Some(&["n"])), ("stranger", Some(&["n"]))], "1"),
            "1" => page(&[], "2"),
            _ => page(&[("b", Some(&["m"])), ("c", None)], ""),
        })
    });
    let (outcome, wrong, asked) = listed(pages, &["a", "b", "c", "d"]).await;
    assert_eq!(outcome.unwrap(), (asked.len(), 4));
    assert_eq!(wrong, ["b", "d"]);
    let tokens: Vec<&str> = asked.iter().map(|(_, token)| token.as_str()).collect();
    assert_eq!(tokens, ["", "1", "2"]);
    assert!(asked.iter().all(|(max_entries, _)| *max_entries == 7));
}

#[tokio::test]
async fn a_token_that_comes_again_ends_the_listing_with_an_error() {
    let pages: Pages = Box::new(|number, _| Ok(page(&[], if number % 3 == 0 { "x" } else { "y" })));
    let (outcome, _, asked) = listed(pages, &["a"]).await;
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains("same next_token twice"));
    assert_eq!(error.code(), "token_repeated");
    assert_eq!(asked.len(), 3);
}

#[tokio::test]
async fn tokens_without_end_do_not_keep_us_for_ever() {
    let pages: Pages = Box::new(|number, _| Ok(page(&[], &number.to_string())));
    let (outcome, _, asked) = listed(pages, &["a"]).await;
    assert!(outcome.unwrap_err().to_string().contains("1000 empty pages in a row"));
    assert_eq!(asked.len(), MAX_EMPTY_PAGES);
    let pages: Pages = Box::new(|number, _| Ok(page(&[("b", None)], &number.to_string())));
    let (outcome, _, asked) = listed(pages, &["a"]).await;
    assert!(outcome.unwrap_err().to_string().contains("no end after 100000 pages"));
    assert_eq!(asked.len(), MAX_PAGES);
}

#[tokio::test]
async fn a_page_that_cannot_be_had_ends_the_listing() {
    let pages: Pages = Box::new(|number, _| match number {
        0 => Ok(page(&[("a", Some(&["n"]))], "1")),
        _ => Err(Status::aborted("token expired")),
    });
    let (outcome, ..) = listed(pages, &["a"]).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.code(), "Aborted");
    let expected = "ListVolumes: rpc error: code = Aborted desc = token expired";
    assert_eq!(error.to_string(), expected);
}

/// A driver may answer one volume a page, however many there are, and pages that are empty.
#[tokio::test]
async fn fifty_thousand_pages_of_one_volume_are_read_to_their_end() {
    const MANY: usize = 50_000;
    let pages: Pages = Box::new(|number, _| {
        let more = (number + 1 < MANY).then(|| number.to_string());
        let token = more.unwrap_or_default();
        let handle = format!("v{number}");
        Ok(match number % 7 {
            0 => page(&[], &token),
            _ => page(&[(&handle, Some(&["n"]))], &token),
        })
    });
    let (outcome, wrong, asked) = listed(pages, &["v0", "v1", "v49999"]).await;
    assert_eq!(outcome.unwrap(), (asked.len(), MANY - MANY.div_ceil(7)));
    assert_eq!((wrong, asked.len()), (vec!["v0".to_owned()], MANY));
}

#[tokio::test(start_paused = true)]
async fn a_pass_has_a_deadline_of_its_own() {
    let pages: Pages = Box::new(|number, _| Ok(page(&[("b", None)], &number.to_string())));
    let takes = DEADLINE.saturating_sub(Duration::from_secs(1));
    let slow = Arc::new(Lister::taking(takes, pages));
    let mut listings = [Listing::about(vec![expected("a")])];
    let (client, mut progress) = (slow.client(), ListProgress::default());
    let outcome = list(|| (client.clone(), DEADLINE), LIMITS, &mut listings, &mut progress).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.code(), "pass_too_long");
    assert_eq!(error.to_string(), "ListVolumes: no end after 15 pages in 60 s");
}

#[test]
fn what_is_not_told_is_neither_wrong_nor_right() {
    let handles = ["told", "untold", "nowhere", "elsewhere"];
    let mut listing = Listing::about(handles.iter().map(|handle| expected(handle)).collect());
    let many: Vec<String> = (0..100).map(|number| format!("m{number}")).collect();
    let with_us = [many.clone(), vec!["n".to_owned()]].concat();
    listing.add("told", Some(&with_us));
    listing.add("untold", Some(&with_us));
    listing.add("untold", None);
    listing.add("elsewhere", Some(&many));
    listing.add("stranger", Some(&many));
    let compared = listing.compare();
    let names = |found: &[Expectation]| -> Vec<String> { found.iter().map(|it| it.name.to_string()).collect() };
    assert_eq!(names(&compared.agreed), ["told"]);
    assert_eq!(names(&compared.contradicted), ["elsewhere", "nowhere"]);
}

/// A driver that takes a second for its only page, with "a" at the node and "b" at another one.
fn slow_lister() -> Arc<Lister> {
    let pages: Pages = Box::new(|_, _| Ok(page(&[("a", Some(&["n"])), ("b", Some(&["m"]))], "")));
    Arc::new(Lister::taking(Duration::from_secs(1), pages))
}

/// What a request for this volume is about, in a cluster with the nodes of [`slow_lister`].
fn about(handle: &str) -> Listing {
    Listing::about(vec![expected(handle)]).with_nodes(["n", "m"].map(Into::into).into())
}

/// Which volumes are attached, and at which nodes, when a listing begins, and whether they are when that ends.
struct Attached {
    handles: &'static [(&'static str, &'static str)],
    lasts: bool,
}

/// Nothing that could be contradicted.
const NOTHING: Attached = Attached {
    handles: &[],
    lasts: true,
};

impl Witnesses for Attached {
    async fn expectations(&self) -> Vec<Expectation> {
        let expected = |(handle, node_id): &(&str, &str)| Expectation {
            node_id: (*node_id).into(),
            ..expected(handle)
        };
        self.handles.iter().map(expected).collect()
    }

    fn is_expected(&self, _expected: &Expectation) -> bool {
        self.lasts
    }
}

/// A driver may list what is attached without its nodes, or not at all. The first listing of a new leader shows that.
#[tokio::test(start_paused = true)]
async fn a_listing_that_contradicts_what_is_attached_proves_no_absence() {
    let (not_there, at_node) = (|| ListedEvidence::NotThere, || ListedEvidence::At("n".to_owned()));
    let doubtful = || ListedEvidence::NotThereDoubtful(ListingDoubt::Contradicts("c".into()));
    let rows: [(_, &'static [_], _, _); 8] = [
        ("b", &[], true, not_there()),
        ("b", &[("a", "n")], true, not_there()),
        ("b", &[("a", "n"), ("c", "m")], true, doubtful()),
        ("b", &[("a", "n"), ("c", "m")], false, not_there()),
        // The machine is gone, with all that was attached to it; of a driver that lists no node at all nobody knows.
        ("b", &[("c", "n"), ("b", "m")], true, not_there()),
        ("b", &[("c", "n")], true, doubtful()),
        ("a", &[("c", "m")], true, at_node()),
        ("c", &[("c", "m")], true, ListedEvidence::Silent),
    ];
    for (handle, handles, lasts, wanted) in rows {
        let (client, turns) = (slow_lister().client(), ListTurns::default());
        let attached = Attached { handles, lasts };
        let page_call = || (client.clone(), DEADLINE);
        let evidence = turns.evidence(about(handle), page_call, LIMITS, &attached).await;
        assert_eq!(evidence, Ok(wanted), "{handle} beside {handles:?}, lasts: {lasts}");
    }
}

/// A hundred requests may be judged at once.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_share_a_listing_that_begins_after_they_asked() {
    let (lister, turns) = (slow_lister(), ListTurns::default());
    let client = lister.client();
    let (client, turns) = (&client, &turns);
    let ask = move |handle| turns.evidence(about(handle), move || (client.clone(), DEADLINE), LIMITS, &NOTHING);
    let first = ask("a");
    // They ask while the listing for the first one is on its way.
    let others = futures::future::join_all(["a", "b", "c"].repeat(30).into_iter().map(ask));
    let (first, others) = tokio::join!(first, others);
    let at_node = || ListedEvidence::At("n".to_owned());
    assert_eq!(first, Ok(at_node()));
    let wanted = [at_node(), ListedEvidence::NotThere, ListedEvidence::Silent];
    for (number, evidence) in others.into_iter().enumerate() {
        assert_eq!(evidence.as_ref(), Ok(&wanted[number % 3]), "{number}");
    }
    assert_eq!(lister.asked.lock().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_listing_that_is_cancelled_lists_again() {
    let (lister, turns) = (slow_lister(), Arc::new(ListTurns::default()));
    let turn = turns.begin().await;
    let asks = ["a", "b"].map(|handle| {
        let (client, turns) = (lister.client(), turns.clone());
        tokio::spawn(async move {
            let page_call = || (client.clone(), DEADLINE);
            turns.evidence(about(handle), page_call, LIMITS, &NOTHING).await
        })
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(lister.asked.lock().len(), 0);
    drop(turn);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(lister.asked.lock().len(), 1);
    let [first, second] = asks;
    first.abort();
    assert_eq!(second.await.unwrap(), Ok(ListedEvidence::NotThere));
    assert_eq!(lister.asked.lock().len(), 2);
}
