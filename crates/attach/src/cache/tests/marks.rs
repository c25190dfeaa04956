//! What shows that a driver published volumes.

use super::*;
use crate::cache::Marks;

fn protected(name: &str, deleting: bool) -> Volume {
    let mut record = volume(name, 1);
    record.finalizers = Finalizers::new(["a/b", FINALIZER]);
    record.deleting = deleting;
    record
}

#[test]
fn claims_and_protected_volumes_show_that_a_driver_published() {
    let (store, driver) = (Store::default(), facts(DRIVER));
    // As a driver without calls leaves it.
    store.apply(attached("marked", 1));
    // A finalizer that nobody wrote together with a node ID.
    store.apply(detaching("alone", 1));
    let mut other = detaching("other", 1);
    (other.attacher, other.node_id) = ("b.test".into(), Some("id".into()));
    store.apply(other);
    store.apply(volume("free", 1));
    store.apply(protected("deleting", true));
    assert!(store.marks(&driver).is_empty(), "{:?}", store.marks(&driver));
    assert!(store.protected(FINALIZER).is_empty());

    store.apply(protected("pv-b", false));
    store.apply(protected("pv-a", false));
    let volume = Some("pv-a".into());
    let expected = Marks {
        volume: volume.clone(),
        ..Marks::default()
    };
    assert_eq!(store.marks(&driver), expected);
    assert_eq!(store.protected(FINALIZER), ["pv-a".into(), "pv-b".into()]);
    let mut in_deletion = Vec::new();
    store.for_each_volume_in_deletion(|volume| in_deletion.push(volume.name.to_string()));
    assert_eq!(in_deletion, ["deleting"]);
    for name in ["va-b", "va-a"] {
        let claimed = with(detaching(name, 1), |it| it.node_id = Some("id".into()));
        store.apply(claimed);
    }
    let expected = Marks {
        attachments: 2,
        attachment: Some("va-a".into()),
        volume,
    };
    assert_eq!(store.marks(&driver), expected);
}

/// Somebody may take the finalizer off before the AttacherConfig goes that would put it back.
#[test]
fn what_has_lost_the_finalizer_is_claimed_still() {
    let store = Store::default();
    let is_called_for = |record: &mut Attachment| record.node_id = Some("id".into());
    store.apply(attachment("new", 1));
    // As a driver without calls leaves it.
    store.apply(attached("marked", 1));
    // After its detach the finalizer of somebody else keeps it.
    let mut detached = detaching("detached", 1);
    detached.finalizers = Finalizers::new(["a/b"]);
    is_called_for(&mut detached);
    store.apply(detached);
    assert_eq!(store.claimed(DRIVER, FINALIZER), 0);

    store.apply(detaching("held", 1));
    for (name, attached) in [("called-for", false), ("attached", true)] {
        let mut lost = attachment(name, 1);
        lost.attached = attached;
        is_called_for(&mut lost);
        store.apply(lost);
    }
    assert_eq!(store.claimed(DRIVER, FINALIZER), 3);
    assert_eq!(store.claimed("b.test", FINALIZER), 0);

    let mut without_calls = route(DRIVER);
    Arc::make_mut(&mut without_calls.facts).capabilities.publish_unpublish = false;
    let _registration = store.register(without_calls).unwrap();
    assert_eq!(store.claimed(DRIVER, FINALIZER), 1, "nobody puts it back");
}
