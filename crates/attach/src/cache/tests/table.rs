//! One table: versions, tombstones, lists.

use std::collections::HashSet;
use std::sync::Arc;

use super::{attached, attachment};
use crate::objects::{Attachment, ResourceVersion};
use crate::reflect::{ObjectTable, Origin};

fn version(table: &ObjectTable<Attachment>, name: &str) -> Option<u64> {
    table.get(name).map(|record| record.resource_version.0)
}

fn of(name: &str, uid: &str, version: u64) -> Attachment {
    let mut record = attachment(name, version);
    record.uid = uid.into();
    record
}

/// Whether a copy is what is known from then on, be it a change or not.
fn taken(table: &mut ObjectTable<Attachment>, copy: Attachment, origin: Origin) -> bool {
    let name = copy.name.clone();
    let before = table.get(&name).cloned();
    table.take_copy(copy, origin);
    let now = table.get(&name);
    now.is_some_and(|now| before.is_none_or(|before| !Arc::ptr_eq(&before, now)))
}

/// Whether a copy that the watch brings is taken.
fn told(table: &mut ObjectTable<Attachment>, copy: Attachment) -> bool {
    taken(table, copy, Origin::Watch)
}

/// Whether a copy that a list brings is taken.
fn listed(table: &mut ObjectTable<Attachment>, copy: Attachment) -> bool {
    taken(table, copy, Origin::List)
}

fn seen(names: &[&str]) -> HashSet<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

#[test]
fn only_a_newer_copy_is_taken() {
    let mut table = ObjectTable::default();
    // Version, whether it is taken, and what is known then.
    let rows = [(5, true, 5), (5, false, 5), (4, false, 5), (6, true, 6), (1, false, 6)];
    for (copy, taken, known) in rows {
        assert_eq!(told(&mut table, attachment("a", copy)), taken, "version {copy}");
        assert_eq!(version(&table, "a"), Some(known));
    }
    // A version that is no number cannot be compared, so the copy counts as news.
    assert!(told(&mut table, attachment("a", 0)));
    assert!(told(&mut table, attachment("a", 3)));
}

/// Somebody writes what no record keeps. The watch brings each version, so that nothing else was true in between; before what a list or an
/// answer brings, our own write may have been undone.
#[test]
fn a_newer_version_that_says_the_same_is_no_change_where_the_watch_brings_it() {
    let mut table = ObjectTable::default();
    table.take_copy(attachment("a", 5), Origin::Watch);
    table.confirm(&attachment("a", 5), 1);
    assert_eq!(table.read_at("a"), Some(1));
    let other = super::with(attachment("a", 14), |record| record.uid = "other".into());
    // What comes from where, and whether it is a change.
    for (copy, origin, is_change) in [
        (attachment("a", 6), Origin::Watch, false),
        (attachment("a", 7), Origin::Answer, true),
        (attachment("a", 8), Origin::Watch, false),
        (attachment("a", 9), Origin::List, true),
        (attachment("a", 10), Origin::Watch, false),
        (attached("a", 11), Origin::Watch, true),
        (attached("a", 12), Origin::Watch, false),
        (attachment("a", 13), Origin::Watch, true),
        (other, Origin::Watch, true),
        (attachment("b", 15), Origin::Watch, true),
    ] {
        if origin == Origin::List {
            table.start_list();
        }
        let (name, copied) = (copy.name.clone(), copy.resource_version);
        let change = table.take_copy(copy, origin);
        assert_eq!(change.is_some(), is_change, "{copied:?}");
        assert_eq!(version(&table, &name), Some(copied.0));
        assert_eq!(table.read_at(&name), None, "{copied:?}: nobody has read this version");
        assert_eq!(table.newest(), copied);
    }
}

#[test]
fn what_was_before_comes_with_what_is_now() {
    let mut table = ObjectTable::default();
    let first = table.take_copy(of("a", "1", 1), Origin::Watch).unwrap();
    assert!(first.previous.is_none());
    let applied = table.take_copy(of("a", "2", 2), Origin::Watch).unwrap();
    let (previous, current) = (applied.previous.unwrap(), applied.current.unwrap());
    assert_eq!((&*previous.uid, &*current.uid), ("1", "2"));
    // A late copy of the object that had the name before.
    assert!(!told(&mut table, of("a", "1", 1)));
}

#[test]
fn only_the_object_with_the_uid_is_removed() {
    let mut table = ObjectTable::default();
    told(&mut table, of("a", "2", 2));
    assert!(table.remove("a", "1").is_none() && table.mark_deleted("a", "1").is_none());
    assert_eq!((version(&table, "a"), table.tombstones()), (Some(2), 0));
    assert!(table.remove("a", "2").is_some() && table.get("a").is_none());
    assert!(table.remove("a", "2").is_none());
}

#[test]
fn late_copies_of_a_deleted_object_are_ignored_until_the_watch_reports_its_end() {
    let mut table = ObjectTable::default();
    told(&mut table, of("a", "1", 1));
    assert!(table.mark_deleted("a", "1").is_some());
    assert!(!told(&mut table, of("a", "1", 2)) && !told(&mut table, of("a", "1", 3)));
    assert!(table.get("a").is_none());
    assert!(!table.shows_deleted(), "a watch may be behind");
    // A new object of the name is another one.
    assert!(told(&mut table, of("a", "2", 5)));
    table.remove("a", "1");
    assert_eq!((version(&table, "a"), table.tombstones()), (Some(5), 0));
}

/// The model checker found it: the answer to a read showed the next object of the name, that one went as well, and the watch, which was
/// behind, brought back the first one as if it were new.
#[test]
fn the_object_that_had_the_name_before_does_not_come_back() {
    let mut table = ObjectTable::default();
    told(&mut table, of("a", "1", 3));
    told(&mut table, of("a", "2", 5));
    assert!(table.mark_deleted("a", "2").is_some());
    for late in [of("a", "1", 2), of("a", "1", 4), of("a", "2", 5)] {
        assert!(!told(&mut table, late));
    }
    assert!(table.remove("a", "1").is_none() && table.remove("a", "2").is_none());
    assert_eq!(table.tombstones(), 0, "the watch has told the end of both");
    assert!(told(&mut table, of("a", "3", 7)));
}

#[test]
fn a_tombstone_outlives_the_list_it_fell_into() {
    let mut table = ObjectTable::default();
    told(&mut table, of("a", "1", 1));
    table.start_list();
    table.mark_deleted("a", "1");
    // The list was made before our write: it may show the object, on this page or not.
    table.finish_list(&seen(&[]), ResourceVersion(0));
    assert_eq!(table.tombstones(), 1);
    table.start_list();
    table.finish_list(&seen(&[]), ResourceVersion(0));
    assert_eq!(table.tombstones(), 0, "the next list was made after it");
}

#[test]
fn a_list_that_began_after_the_tombstone_and_shows_the_object_proves_that_it_exists() {
    let mut table = ObjectTable::default();
    told(&mut table, of("a", "1", 1));
    table.start_list();
    table.mark_deleted("a", "1");
    // This list began before the tombstone; so did the watch that goes on meanwhile.
    assert!(!listed(&mut table, of("a", "1", 2)));
    table.finish_list(&seen(&["a"]), ResourceVersion(0));
    assert!(!told(&mut table, of("a", "1", 3)));
    assert_eq!(table.tombstones(), 1);
    table.start_list();
    assert!(!told(&mut table, of("a", "1", 3)), "an answer to an older request");
    assert!(listed(&mut table, of("a", "1", 2)));
    assert_eq!((version(&table, "a"), table.tombstones()), (Some(2), 0));
    table.finish_list(&seen(&["a"]), ResourceVersion(0));
    assert!(told(&mut table, of("a", "1", 4)));
}

#[test]
fn a_list_counts_whatever_its_versions_unless_a_copy_came_in_since_it_began() {
    let mut table = ObjectTable::default();
    let rows = [("1", 9), ("1", 4), ("2", 3), ("1", 2)];
    for (uid, older) in rows {
        table.start_list();
        assert!(listed(&mut table, of("a", uid, older)), "{uid} {older}");
        assert_eq!((version(&table, "a"), table.newest().0), (Some(older), older));
        assert!(!told(&mut table, of("a", uid, older)));
        table.finish_list(&seen(&["a"]), ResourceVersion(0));
        assert!(!told(&mut table, of("a", uid, older - 1)));
    }
    table.start_list();
    assert!(!listed(&mut table, of("a", "1", 2)), "nothing is new");
    assert!(told(&mut table, of("a", "1", 3)));
    assert!(!listed(&mut table, of("a", "1", 2)), "an answer is newer than the list");
    assert_eq!(version(&table, "a"), Some(3));
}

#[test]
fn what_ends_while_it_is_read_is_not_taken_in() {
    let name: Arc<str> = "a".into();
    let mut table = ObjectTable::<Attachment>::default();
    let copy = ResourceVersion(11);
    let read = table.start_read(&name);
    assert!(table.finish_read(read, copy) && !table.finish_read(read, copy));
    let read = table.start_read(&name);
    table.remove("b", "b-uid");
    table.start_list();
    table.finish_list(&seen(&["a"]), ResourceVersion(0));
    assert!(table.finish_read(read, copy), "that was about others");
    let read = table.start_read(&name);
    table.remove("a", "a-uid");
    assert!(!table.finish_read(read, copy));
    // The version of a list that does not show the object, and whether the copy is taken in.
    for (list, is_taken) in [(0, false), (10, true), (11, false), (12, false)] {
        let read = table.start_read(&name);
        table.start_list();
        table.finish_list(&seen(&["b"]), ResourceVersion(list));
        assert_eq!(table.finish_read(read, copy), is_taken, "list {list}");
    }
    // The watch that follows the list has told the end.
    let read = table.start_read(&name);
    table.start_list();
    table.finish_list(&seen(&["b"]), ResourceVersion(10));
    table.remove("a", "a-uid");
    assert!(!table.finish_read(read, copy));
}

/// A request of ours may be answered while the pages of a list come in that was made before it.
#[test]
fn what_is_newer_than_the_list_it_came_in_with_stays_for_the_watch_that_follows() {
    // The version of the list, that of the answer, and whether it stays.
    for (list, answer, stays) in [
        (10, 11, true),
        // It was deleted before the list was made.
        (10, 10, false),
        (10, 9, false),
        // Versions that are no numbers, and a list from any state.
        (10, 0, false),
        (0, 11, false),
        // A list has shown version 5, and this one shows 6: the API server went back, or the versions mean nothing.
        (4, 11, false),
        (5, 11, false),
        (6, 11, true),
    ] {
        let mut table = ObjectTable::default();
        let gone = |table: &mut ObjectTable<Attachment>, names: &[&str]| -> Vec<String> {
            let gone = table.finish_list(&seen(names), ResourceVersion(list));
            gone.iter().map(|record| record.name.to_string()).collect()
        };
        table.start_list();
        table.take_copy(attachment("old", 5), Origin::List);
        assert!(gone(&mut table, &["old"]).is_empty());
        table.start_list();
        table.take_copy(attachment("shown", 6), Origin::List);
        table.take_copy(attachment("made", answer), Origin::Answer);
        let expected = if stays { vec!["old"] } else { vec!["made", "old"] };
        assert_eq!(gone(&mut table, &["shown"]), expected, "list {list}, answer {answer}");
        // It was known when this one began.
        table.start_list();
        assert_eq!(gone(&mut table, &["shown"]), ["made", "old"]);
    }
}

#[test]
fn a_list_tells_what_is_gone_by_what_it_does_not_show() {
    let mut table = ObjectTable::default();
    for name in ["a", "b", "c"] {
        told(&mut table, attachment(name, 1));
    }
    table.start_list();
    told(&mut table, attachment("b", 1));
    let gone = table.finish_list(&seen(&["b"]), ResourceVersion(0));
    let mut gone: Vec<&str> = gone.iter().map(|record| &*record.name).collect();
    gone.sort_unstable();
    assert_eq!(gone, ["a", "c"]);
    assert_eq!(table.values().count(), 3, "who takes them out also follows up on it");
    assert_eq!(version(&table, "b"), Some(1));
}
