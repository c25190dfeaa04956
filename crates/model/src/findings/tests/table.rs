//! Each finding and its cause.

use super::FindingKind::{
    AttachStuck, AttachedTwice, DetachStuck, DriverNotOnNode, InlineLeftOver, LeftOver, NodeGone, OtherAttacher,
    VolumeGone,
};
use super::*;
use crate::objects::{InTreePlugin, VolumeAnnotation};

/// An hour in which nothing changes.
const LATER: i64 = 3600;

/// What it is, the case, when it is examined, and what is found.
type Row = (&'static str, Case, i64, &'static [FindingKind]);

fn check(table: Vec<Row>) {
    for (what, case, now, expected) in table {
        assert_eq!(case.kinds(now), expected, "{what}");
    }
}

impl Case {
    fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn fails(self) -> Self {
        self.but(|it| it.error = Some("no"))
    }

    fn unclaimed(self) -> Self {
        self.but(|it| it.claimed = false)
    }

    /// Deleted at time 100.
    fn leaving(self) -> Self {
        self.but(|it| it.deleted = Some(100))
    }

    fn with_node(self, node: Entry) -> Self {
        self.but(|it| it.node = node)
    }
}

#[test]
fn what_takes_too_long_is_stuck() {
    let leaving = || well().leaving();
    check(vec![
        ("attached", well(), LATER, &[]),
        ("young", waiting().unclaimed(), 300, &[]),
        ("never began", waiting().unclaimed(), 301, &[AttachStuck]),
        ("fails", waiting().fails(), 301, &[AttachStuck]),
        ("fails, but young", waiting().fails(), 299, &[]),
        ("one long call", waiting(), 600, &[]),
        ("a call without end", waiting(), 601, &[AttachStuck]),
        ("a repair fails", well().fails(), LATER, &[]),
        ("leaving", leaving(), 700, &[]),
        ("does not leave", leaving(), 701, &[DetachStuck]),
        ("leaving fails", leaving().fails(), 401, &[DetachStuck]),
        ("leaving fails, but young", leaving().fails(), 399, &[]),
        ("held by another", leaving().unclaimed(), LATER, &[]),
    ]);
}

#[test]
fn what_is_around_an_attachment_has_to_fit() {
    let twice = |modes: &[&'static str]| {
        well().but(|it| {
            it.attached_at = Some("m");
            it.modes = modes.to_vec();
        })
    };
    let lost = |case: Case| {
        case.but(|it| {
            it.node = Entry::Missing;
            it.volume = Some(Found::Gone);
        })
    };
    check(vec![
        (
            "volume gone",
            well().but(|it| it.volume = Some(Found::Gone)),
            10,
            &[VolumeGone],
        ),
        ("node gone", well().with_node(Entry::Missing), 10, &[NodeGone]),
        (
            "driver gone",
            well().with_node(Entry::WithoutDriver),
            10,
            &[DriverNotOnNode],
        ),
        (
            "registered with a blank node ID",
            well().with_node(Entry::BlankId),
            10,
            &[DriverNotOnNode],
        ),
        ("twice", twice(&["ReadWriteOnce"]), 10, &[AttachedTwice]),
        ("twice, for one pod", twice(&["ReadWriteOncePod"]), 10, &[AttachedTwice]),
        ("shared", twice(&["ReadWriteMany"]), 10, &[]),
        ("shared or not", twice(&["ReadWriteOnce", "ReadOnlyMany"]), 10, &[]),
        (
            "not attached yet",
            twice(&["ReadWriteOnce"]).but(|it| it.attached = false),
            10,
            &[],
        ),
        (
            "no attach required",
            well().but(|it| it.attach_required = Some(false)),
            10,
            &[LeftOver],
        ),
        ("CSIDriver unknown", well().but(|it| it.attach_required = None), 10, &[]),
        ("lost", lost(waiting()), LATER, &[AttachStuck, VolumeGone, NodeGone]),
        ("lost, but leaving", lost(well()).leaving(), 200, &[]),
        ("twice, but leaving", twice(&["ReadWriteOnce"]).leaving(), 200, &[]),
    ]);
}

#[test]
fn in_line_volumes_are_left_over_when_they_are_wanted_elsewhere_or_lost_their_node() {
    let inline = || well().but(|it| it.volume = None);
    let moved = || inline().but(|it| it.wanted_at = Some("m"));
    let twice = || inline().but(|it| it.attached_at = Some("m"));
    check(vec![
        ("in use", inline(), LATER, &[]),
        ("moved", moved(), 10, &[InlineLeftOver]),
        ("moved, but leaving", moved().leaving(), 200, &[]),
        ("shared", moved().but(|it| it.modes = vec!["ReadWriteMany"]), 10, &[]),
        ("twice", twice(), 10, &[AttachedTwice]),
        (
            "twice, and moved",
            twice().but(|it| it.wanted_at = Some("m")),
            10,
            &[AttachedTwice, InlineLeftOver],
        ),
        (
            "twice, but shared",
            twice().but(|it| it.modes = vec!["ReadWriteMany"]),
            10,
            &[],
        ),
        ("twice, but leaving", twice().leaving(), 200, &[]),
        ("node gone", inline().with_node(Entry::Missing), 10, &[InlineLeftOver]),
        (
            "driver gone",
            inline().with_node(Entry::WithoutDriver),
            10,
            &[DriverNotOnNode],
        ),
        ("of a volume", well().but(|it| it.wanted_at = Some("m")), 10, &[]),
    ]);
}

#[test]
fn words_name_the_object_the_error_and_since_when() {
    let fails = waiting().but(|it| it.error = Some("rpc error: code = Internal desc = disk is busy"));
    let text = fails.with_input(|input| finding_message(FindingKind::AttachStuck, input));
    assert_eq!(
        text,
        "the attach of VolumeAttachment va to node n has been waiting since 1970-01-12T13:46:40Z; the last error: rpc \
         error: code = Internal desc = disk is busy"
    );
    let twice = well().but(|it| it.attached_at = Some("m"));
    let text = |case: Case| case.with_input(|input| finding_message(FindingKind::AttachedTwice, input));
    let ends = "is attached to node n and to node m, and its access mode allows one node only; data may be damaged: find out \
                which node has it in use, and delete the other VolumeAttachment";
    assert_eq!(
        text(twice.clone()),
        format!("VolumeAttachment va: the volume of PersistentVolume pv {ends}")
    );
    assert_eq!(
        text(twice.but(|it| it.volume = None)),
        format!("VolumeAttachment va: the inline volume {ends}")
    );
    let of_node = |node| {
        well()
            .with_node(node)
            .with_input(|input| finding_message(DriverNotOnNode, input))
    };
    assert_eq!(
        of_node(Entry::WithoutDriver),
        "VolumeAttachment va: driver d.csi.test is not registered on node n (see CSINode n); check the driver's pod on that node"
    );
    assert_eq!(
        of_node(Entry::BlankId),
        "VolumeAttachment va: CSINode n has a blank node ID for driver d.csi.test; restart the driver's pod on that node"
    );
    // These are about the driver as a whole.
    let of_driver = [
        FindingKind::AttachNotRequired,
        FindingKind::CSIDriverMissing,
        FindingKind::AttachedWithoutCall,
    ];
    for kind in FindingKind::of_role(true).filter(|kind| !of_driver.contains(kind)) {
        let text = well().with_input(|input| finding_message(kind, input));
        assert!(
            text.contains("VolumeAttachment va") && text.contains("node n"),
            "{text}"
        );
    }
}

/// kube-controller-manager knows by the Node what is attached, whatever became of PersistentVolume and CSIDriver.
#[test]
fn a_person_deletes_only_what_kube_controller_manager_leaves() {
    let follows = "and the attachment to node n is left over; kube-controller-manager requests the detach once no pod \
                   on the node uses the volume and it is unmounted; delete the VolumeAttachment by hand only if it \
                   stays after that";
    for kind in [VolumeGone, LeftOver, FindingKind::AttachNotRequired] {
        let text = well().with_input(|input| finding_message(kind, input));
        assert!(text.ends_with(follows), "{text}");
    }
}

/// What is found, and how it is told, where the note names another handle than the PersistentVolume, which was made at this time.
fn noted_otherwise(made: i64, in_tree: Option<InTreePlugin>) -> (Vec<FindingKind>, String) {
    well().with_input(|input| {
        let mut attachment = input.attachment.clone();
        attachment.volume_note = Some(Box::new(VolumeAnnotation {
            handle: "x".into(),
            secret: None,
            former: Vec::new(),
            renewed: 0,
        }));
        let mut volume = input.volume.unwrap().clone();
        volume.created = Some(at(made));
        volume.in_tree = in_tree;
        let input = FindingInput {
            attachment: &attachment,
            volume: Some(&volume),
            ..*input
        };
        let found = findings(&input, at(10), STUCK_AFTER).into_iter().collect();
        (found, finding_message(FindingKind::VolumeReplaced, &input))
    })
}

/// The volume was there before the attachment: it was not created again, and what is attached is not another volume for sure.
#[test]
fn a_note_that_an_older_volume_contradicts_is_told_as_wrong() {
    let text = |made: i64| {
        let (found, text) = noted_otherwise(made, None);
        assert_eq!(found, [FindingKind::VolumeReplaced]);
        text
    };
    assert_eq!(
        text(-1),
        "annotation attacher.csi.dev/volume of VolumeAttachment va names volume x, and PersistentVolume pv, which was there before \
         and never changes its handle, is volume h: the annotation is wrong; a detach takes both volumes from the node; run kubectl \
         annotate volumeattachment va attacher.csi.dev/volume- to have it written again"
    );
    let later = text(0);
    assert!(later.contains("is volume h since it was created again"), "{later}");
}

/// The handle of an in-tree volume is another one when its labels are.
#[test]
fn an_older_in_tree_volume_with_another_handle_was_not_created_again() {
    let kinds = |made: i64| noted_otherwise(made, Some(InTreePlugin::GcePersistentDisk)).0;
    assert_eq!(kinds(-1), []);
    assert_eq!(kinds(0), [FindingKind::VolumeReplaced]);
}

#[test]
fn another_attacher_shows_by_what_it_writes_after_the_lease_was_taken() {
    let written = |time: i64, since: Option<i64>| {
        well().but(|it| {
            it.written_by_another = Some(time);
            it.leads_since = since;
        })
    };
    check(vec![
        ("before the Lease was taken", written(50, Some(60)), 70, &[]),
        (
            "at its last moment, by clocks that differ",
            written(70, Some(60)),
            80,
            &[],
        ),
        ("beside this operator", written(71, Some(60)), 80, &[OtherAttacher]),
        ("for some time after", written(71, Some(60)), 670, &[OtherAttacher]),
        ("not for ever", written(71, Some(60)), 671, &[]),
        ("where nobody leads", written(71, None), 80, &[]),
        (
            "in a detach, too",
            written(71, Some(60)).but(|it| it.deleted = Some(72)),
            80,
            &[OtherAttacher],
        ),
    ]);
}
