//! Which publish secrets are read: those that the AttacherConfig lists and, for a detach, the one that was noted at the
//! claim.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::json;

use super::builders::{Pv, attachment, volume};
use super::strategies::worlds;
use super::world::{DecideModel, world};
use crate::api::{AttacherConfigSpec, DriverConfig, PublishSecretsSpec};
use crate::decide::observe;
use crate::decide::{self, Action, Refusal, SecretState};
use crate::objects::SecretReference;

const NAMESPACES: [&str; 3] = ["a", "b", "default"];
const NAMES: [&str; 3] = ["x", "y", "secret"];

fn reference() -> impl Strategy<Value = SecretReference> {
    (select(NAMESPACES.to_vec()), select(NAMES.to_vec())).prop_map(|(namespace, name)| SecretReference {
        namespace: namespace.into(),
        name: name.into(),
    })
}

fn entries() -> impl Strategy<Value = Vec<PublishSecretsSpec>> {
    let names = prop::option::of(subsequence(NAMES.to_vec(), 1..=3));
    let entry = (select(NAMESPACES.to_vec()), names).prop_map(|(namespace, names)| PublishSecretsSpec {
        namespace: namespace.to_owned(),
        names: names.map(|names| names.into_iter().map(str::to_owned).collect()),
    });
    prop::collection::vec(entry, 0..4)
}

/// What the documentation says of the list.
fn lists(entries: &[PublishSecretsSpec], secret: &SecretReference) -> bool {
    entries.iter().any(|entry| {
        entry.namespace == *secret.namespace
            && entry
                .names
                .as_ref()
                .is_none_or(|names| names.iter().any(|name| *name == *secret.name))
    })
}

fn with_list(mut world: DecideModel, entries: &[PublishSecretsSpec]) -> DecideModel {
    let spec = AttacherConfigSpec {
        publish_secrets: entries.to_vec(),
        ..AttacherConfigSpec::new("unix:///a")
    };
    let config = DriverConfig::try_from(&spec).expect("a valid list");
    world.policy.publish_secrets = config.publish_secrets;
    world
}

fn naming(volume: Pv, secret: &SecretReference) -> Pv {
    let reference = json!({"namespace": secret.namespace, "name": secret.name});
    volume.set("/spec/csi/controllerPublishSecretRef", reference)
}

proptest! {
    /// The rule of `spec.publishSecrets`, for attaches and detaches of volumes, in-line ones too, whatever else is wrong.
    #[test]
    fn no_secret_outside_the_list_is_read(
        world in worlds(),
        entries in entries(),
        named in prop::option::of(reference()),
        noted in prop::option::of(reference()),
        other_handle: bool,
        inline: bool,
        loaded: bool,
    ) {
        let mut world = with_list(world, &entries);
        let handle = if other_handle { "handle2" } else { "handle1" };
        if let Some(secret) = &named {
            for object in [&mut world.attachment, &mut world.volume].into_iter().flatten() {
                let pointer = if inline { "/spec/source/inlineVolumeSpec/csi" } else { "/spec/csi" };
                if let Some(csi) = object.pointer_mut(pointer) {
                    csi["controllerPublishSecretRef"] = json!({"namespace": secret.namespace, "name": secret.name});
                }
            }
        }
        if let (Some(secret), Some(attachment)) = (&noted, &mut world.attachment) {
            let note = json!({"handle": handle, "secret": {"namespace": secret.namespace, "name": secret.name}});
            attachment["metadata"]["annotations"]["attacher.csi.dev/volume"] = note.to_string().into();
        }
        let credentials = if loaded { SecretState::Loaded } else { SecretState::NotLoaded };
        let snapshot = world.snapshot().unwrap();
        let observed = observe(&snapshot, &world.driver, &world.policy, credentials);
        let noted = snapshot.attachment.volume_note.as_ref().and_then(|note| note.secret.as_ref());
        let may_be_read = |secret: &SecretReference| {
            lists(&entries, secret) || (snapshot.attachment.deleting.is_some() && noted == Some(secret))
        };
        match decide::attachment(&observed) {
            Action::LoadCredentials(secret) => {
                prop_assert!(may_be_read(secret), "{:?} is read by {:?}", secret, entries);
                prop_assert_eq!(decide::publish_secret(&observed), Ok(Some(secret)));
            }
            Action::Refuse(Refusal::SecretNotAllowed { secret, .. }) => {
                prop_assert!(!may_be_read(&secret), "{:?} is refused by {:?}", secret, entries);
            }
            // What was read goes along: it is a Secret that may be, or none is sent.
            Action::Publish(_) | Action::Unpublish(_) => {
                if let Ok(Some(secret)) = decide::publish_secret(&observed) {
                    prop_assert!(loaded && may_be_read(secret));
                }
                prop_assert!(decide::publish_secret(&observed).is_ok());
            }
            _ => {}
        }
    }
}

/// The words say what to change, and where.
#[test]
fn the_refusal_names_object_field_and_entry() {
    let secret = SecretReference {
        namespace: "storage".into(),
        name: "credentials".into(),
    };
    let world = with_list(world(), &[])
        .pv(naming(volume(), &secret))
        .node()
        .va(attachment());
    let snapshot = world.snapshot().unwrap();
    let observed = observe(&snapshot, &world.driver, &world.policy, SecretState::NotLoaded);
    let Action::Refuse(refusal) = decide::attachment(&observed) else {
        panic!("not refused")
    };
    assert_eq!(refusal.reason(), "secret_not_allowed");
    assert_eq!(
        refusal.to_string(),
        "the volume names Secret storage/credentials, which spec.publishSecrets of AttacherConfig config does not list; if \
         driver csi/test may receive this Secret, add {namespace: storage, names: [credentials]}"
    );
}
