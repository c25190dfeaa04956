//! The backend answers as the specification asks.

use std::collections::BTreeSet;

use tonic::Code;

use super::*;
use crate::{ControllerCapability, Method, Rule};

#[tokio::test]
async fn publish_is_idempotent_and_refuses_another_use() {
    let fixture = Fixture::new(|builder| builder).await;
    let mut client = fixture.controller().await;
    let first = client
        .controller_publish_volume(publish("v1", "n1"))
        .await
        .unwrap()
        .into_inner();
    let again = client
        .controller_publish_volume(publish("v1", "n1"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(first, again);
    assert_eq!(first.publish_context["devicePath"], "/dev/xvdba");

    let mut readonly = publish("v1", "n1");
    readonly.readonly = true;
    assert_eq!(
        code(&client.controller_publish_volume(readonly).await),
        Code::AlreadyExists
    );
    let mut other = publish("v1", "n1");
    other.volume_capability = Some(block(Mode::SingleNodeWriter));
    assert_eq!(
        code(&client.controller_publish_volume(other).await),
        Code::AlreadyExists
    );
    let elsewhere = client.controller_publish_volume(publish("v1", "n2")).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::FailedPrecondition);
    assert!(elsewhere.message().contains("n1"), "{elsewhere}");
    assert_eq!(fixture.mock.published(), pairs(&[("v1", "n1")]));
}

#[tokio::test]
async fn access_modes_decide_about_a_second_node() {
    for (first, second, expected) in [
        (Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter, Code::Ok),
        (Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly, Code::Ok),
        (
            Mode::MultiNodeMultiWriter,
            Mode::SingleNodeWriter,
            Code::FailedPrecondition,
        ),
        (
            Mode::SingleNodeMultiWriter,
            Mode::MultiNodeMultiWriter,
            Code::FailedPrecondition,
        ),
    ] {
        let fixture = Fixture::new(|builder| builder).await;
        let mut client = fixture.controller().await;
        for (node, mode, expected) in [("n1", first, Code::Ok), ("n2", second, expected)] {
            let mut request = publish("v1", node);
            request.volume_capability = Some(capability(mode));
            assert_eq!(
                code(&client.controller_publish_volume(request).await),
                expected,
                "{first:?} {second:?} {node}"
            );
        }
    }
}

#[tokio::test]
async fn what_is_missing_or_unknown_is_refused() {
    let only = [ControllerCapability::PublishUnpublishVolume];
    let fixture = Fixture::new(|builder| builder.nodes(["n1"]).capabilities(only)).await;
    let mut client = fixture.controller().await;
    let mut without_capability = publish("v1", "n1");
    without_capability.volume_capability = None;
    let mut readonly = publish("v1", "n1");
    readonly.readonly = true;
    let mut new_mode = publish("v1", "n1");
    new_mode.volume_capability = Some(capability(Mode::SingleNodeSingleWriter));
    for (request, expected) in [
        (publish("", "n1"), Code::InvalidArgument),
        (publish("v1", ""), Code::InvalidArgument),
        (without_capability, Code::InvalidArgument),
        (readonly, Code::InvalidArgument),
        (new_mode, Code::InvalidArgument),
        (publish("nope", "n1"), Code::NotFound),
        (publish("v1", "nope"), Code::NotFound),
    ] {
        assert_eq!(
            code(&client.controller_publish_volume(request.clone()).await),
            expected,
            "{request:?}"
        );
    }
    let list = client.list_volumes(v1::ListVolumesRequest::default()).await;
    assert_eq!(code(&list), Code::Unimplemented);
    assert_eq!(fixture.mock.published(), BTreeSet::new());
}

#[tokio::test]
async fn unpublish_of_something_gone_follows_the_switch() {
    let fixture = Fixture::new(|builder| builder.nodes(["n1"])).await;
    let mut client = fixture.controller().await;
    for strict in [false, true] {
        fixture
            .mock
            .settings(|settings| settings.unpublish_unknown_is_not_found = strict);
        let unknown = if strict { Code::NotFound } else { Code::Ok };
        for (request, expected) in [
            (unpublish("v1", "n1"), Code::Ok),
            (unpublish("nope", "n1"), unknown),
            (unpublish("v1", "nope"), unknown),
            (unpublish("", "n1"), Code::InvalidArgument),
        ] {
            assert_eq!(
                code(&client.controller_unpublish_volume(request.clone()).await),
                expected,
                "{request:?}"
            );
        }
    }
}

#[tokio::test]
async fn unpublish_without_a_node_detaches_from_all() {
    let fixture = Fixture::new(|builder| builder).await;
    let mut client = fixture.controller().await;
    fixture.mock.drift_attach("v1", "n1");
    fixture.mock.drift_attach("v1", "n2");
    fixture.mock.drift_attach("v2", "n2");
    client.controller_unpublish_volume(unpublish("v1", "")).await.unwrap();
    assert_eq!(fixture.mock.published(), pairs(&[("v2", "n2")]));
}

#[tokio::test]
async fn a_full_node_gets_room_by_a_detach() {
    let fixture = Fixture::new(|builder| builder.attach_limit(2)).await;
    let mut client = fixture.controller().await;
    for volume in ["v1", "v2"] {
        client.controller_publish_volume(publish(volume, "n1")).await.unwrap();
    }
    assert_eq!(
        code(&client.controller_publish_volume(publish("v3", "n1")).await),
        Code::ResourceExhausted
    );
    client.controller_publish_volume(publish("v3", "n2")).await.unwrap();
    client.controller_unpublish_volume(unpublish("v1", "n1")).await.unwrap();
    client.controller_unpublish_volume(unpublish("v3", "n2")).await.unwrap();
    let context = client
        .controller_publish_volume(publish("v3", "n1"))
        .await
        .unwrap()
        .into_inner()
        .publish_context;
    assert_eq!(context["devicePath"], "/dev/xvdba", "the slot of v1 is free again");
}

#[tokio::test]
async fn volumes_spring_into_being_only_when_asked() {
    let fixture = Fixture::new(MockDriverBuilder::accept_any_volume).await;
    let mut client = fixture.controller().await;
    client
        .controller_publish_volume(publish("static-pv", "n1"))
        .await
        .unwrap();
    assert_eq!(fixture.mock.published(), pairs(&[("static-pv", "n1")]));
}

#[tokio::test]
async fn pages_survive_a_removed_entry_and_bad_tokens_are_refused() {
    let fixture = Fixture::new(|builder| builder.volume("v4").volume("v5")).await;
    fixture.mock.drift_attach("v4", "n7");
    let mut client = fixture.controller().await;
    let mut list = async |max_entries: i32, starting_token: String| {
        let answer = client
            .list_volumes(v1::ListVolumesRequest {
                max_entries,
                starting_token,
            })
            .await?
            .into_inner();
        let entry = |entry: v1::list_volumes_response::Entry| {
            (
                entry.volume.unwrap().volume_id,
                entry.status.unwrap().published_node_ids,
            )
        };
        Ok::<_, Status>((
            answer.entries.into_iter().map(entry).collect::<Vec<_>>(),
            answer.next_token,
        ))
    };
    let none = Vec::<String>::new;
    let (entries, token) = list(2, String::new()).await.unwrap();
    assert_eq!(entries, [("v1".to_owned(), none()), ("v2".to_owned(), none())]);
    assert!(fixture.mock.delete_volume("v2"), "the volume the token names goes away");
    let (entries, token) = list(2, token).await.unwrap();
    assert_eq!(
        entries,
        [("v3".to_owned(), none()), ("v4".to_owned(), vec!["n7".to_owned()])]
    );
    fixture
        .mock
        .set_capability(ControllerCapability::ListVolumesPublishedNodes, false);
    let (entries, token) = list(2, token).await.unwrap();
    assert_eq!((entries.len(), token.as_str()), (1, ""));
    assert_eq!(
        list(0, String::new()).await.unwrap().0[2],
        ("v4".to_owned(), none()),
        "the capability is off"
    );

    assert_eq!(list(0, "garbage".to_owned()).await.unwrap_err().code(), Code::Aborted);
    assert_eq!(list(-1, String::new()).await.unwrap_err().code(), Code::InvalidArgument);
    fixture.mock.settings(|settings| settings.list_page_limit = Some(3));
    assert_eq!(list(100, String::new()).await.unwrap().0.len(), 3);

    // A rule may be for one page.
    let (_, token) = list(1, String::new()).await.unwrap();
    let rule = Rule::on(Method::ListVolumes).starting_token(&token);
    fixture.mock.script(rule.fail(Code::Unavailable, "the second page"));
    assert!(list(1, String::new()).await.is_ok());
    assert_eq!(list(1, token).await.unwrap_err().code(), Code::Unavailable);
    assert!(list(1, "after:v3".to_owned()).await.is_ok());
}

#[tokio::test]
async fn a_driver_without_the_controller_service_is_trivial() {
    let fixture = Fixture::new(MockDriverBuilder::without_controller_service).await;
    let mut identity = v1::identity_client::IdentityClient::new(fixture.channel().await);
    let capabilities = identity
        .get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {})
        .await
        .unwrap();
    assert_eq!(capabilities.into_inner().capabilities, []);
    let mut client = fixture.controller().await;
    let capabilities = client
        .controller_get_capabilities(v1::ControllerGetCapabilitiesRequest {})
        .await;
    assert_eq!(code(&capabilities), Code::Unimplemented);
    assert_eq!(
        code(&client.controller_publish_volume(publish("v1", "n1")).await),
        Code::Unimplemented
    );
}

#[tokio::test]
async fn identity_changes_at_run_time() {
    let fixture = Fixture::new(|builder| builder).await;
    let mut identity = v1::identity_client::IdentityClient::new(fixture.channel().await);
    let mut look = async || {
        let info = identity
            .get_plugin_info(v1::GetPluginInfoRequest {})
            .await
            .unwrap()
            .into_inner();
        (
            info.name,
            identity.probe(v1::ProbeRequest {}).await.unwrap().into_inner().ready,
        )
    };
    assert_eq!(look().await, ("mock.example.com".to_owned(), Some(true)));
    fixture.mock.set_ready(false);
    fixture.mock.set_driver_name("other.example.com");
    assert_eq!(look().await, ("other.example.com".to_owned(), Some(false)));
}
