//! What shows that a driver published volumes.

use super::{DRIVER, FINALIZER, attachment, detaching, facts, volume};
use crate::cache::{Marks, Store};
use crate::objects::{Finalizers, Volume};

fn protected(name: &str, deleting: bool) -> Volume {
    let mut record = volume(name, 1);
    record.finalizers = Finalizers::new(["a/b", FINALIZER]);
    record.deleting = deleting;
    record
}

#[test]
fn claims_and_protected_volumes_show_that_a_driver_published() {
    let (store, driver) = (Store::default(), facts(DRIVER));
    let mut marked = attachment("marked", 1);
    // As a driver without calls leaves it.
    marked.attached = true;
    store.apply(marked);
    // A finalizer that nobody wrote together with a node ID.
    store.apply(detaching("alone", 1));
    let mut other = detaching("other", 1);
    (other.attacher, other.node_id) = ("b.test".into(), Some("id".into()));
    store.apply(other);
    store.apply(volume("free", 1));
    store.apply(protected("deleting", true));
    assert!(store.marks(&driver).is_empty(), "{:?}", store.marks(&driver));
    assert_eq!(store.protected(FINALIZER), (vec!["deleting".into()], vec![]));

    store.apply(protected("pv-b", false));
    store.apply(protected("pv-a", false));
    let volume = Some("pv-a".into());
    let expected = Marks {
        volume: volume.clone(),
        ..Marks::default()
    };
    assert_eq!(store.marks(&driver), expected);
    assert_eq!(store.protected(FINALIZER).1, ["pv-a".into(), "pv-b".into()]);
    for name in ["va-b", "va-a"] {
        let mut claimed = detaching(name, 1);
        claimed.node_id = Some("id".into());
        store.apply(claimed);
    }
    let expected = Marks {
        attachments: 2,
        attachment: Some("va-a".into()),
        volume,
    };
    assert_eq!(store.marks(&driver), expected);
}
