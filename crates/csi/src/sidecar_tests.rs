//! Section 8.10 of the sidecar's behaviour: what the two calls make of requests and answers, 7 + 5 scenarios.
//!
//! The sidecar's calls also tell whether a failed Publish left the volume detached for certain; here that is
//! [`decide::is_final`] of the code.

use std::collections::BTreeMap;
use tonic::Code;

use super::client_tests::{ClientFixture, LONG, within};
use super::{CallError, ControllerPublishVolume, ControllerUnpublishVolume};
use crate::apiserver::SecretData;
use crate::decide::{self, AccessMode, Capability, Failure, PublishRequest, VolumeAccessType, VolumeOnNode};
use crate::objects::StringMap;
use crate::telemetry::Span;
use csi_mock_driver::{CallRecord, Method, MockDriver, Rule};

type Entries = &'static [(&'static str, &'static str)];

const CONTEXT: Entries = &[("first", "foo"), ("second", "bar"), ("third", "baz")];

fn map(entries: Entries) -> BTreeMap<String, String> {
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    entries.iter().map(own).collect()
}

fn keys(secrets: Option<Entries>) -> Vec<&'static str> {
    secrets.unwrap_or_default().iter().map(|(key, _)| *key).collect()
}

/// A Publish, what the driver answers to it, and whether an error means that the volume is detached for certain.
struct Publish {
    name: &'static str,
    read_only: bool,
    attributes: Entries,
    secrets: Option<Entries>,
    answer: Result<Entries, Code>,
    detached: bool,
}

const SUCCESS: Publish = Publish {
    name: "success",
    read_only: false,
    attributes: &[],
    secrets: None,
    answer: Ok(CONTEXT),
    detached: false,
};

const PUBLISHES: [Publish; 7] = [
    SUCCESS,
    Publish {
        name: "success no info",
        answer: Ok(&[]),
        ..SUCCESS
    },
    Publish {
        name: "readonly success",
        read_only: true,
        ..SUCCESS
    },
    Publish {
        name: "gRPC final error",
        answer: Err(Code::NotFound),
        detached: true,
        ..SUCCESS
    },
    Publish {
        name: "gRPC transient error",
        answer: Err(Code::DeadlineExceeded),
        ..SUCCESS
    },
    Publish {
        name: "attributes",
        attributes: &[("foo", "bar")],
        ..SUCCESS
    },
    Publish {
        name: "secrets",
        secrets: Some(&[("foo", "bar")]),
        ..SUCCESS
    },
];

async fn stage(context: Entries) -> ClientFixture {
    let stage = ClientFixture::of(MockDriver::builder("client.test")).await;
    stage.driver.settings(|settings| {
        settings.publish_contexts.insert("v".to_owned(), map(context));
    });
    stage
}

fn only_call(stage: &ClientFixture, method: Method) -> CallRecord {
    let mut calls = stage.driver.calls_of(method);
    assert_eq!(calls.len(), 1);
    calls.remove(0)
}

async fn published(stage: &ClientFixture, row: &Publish) -> Result<StringMap, CallError> {
    let attributes = StringMap::from(map(row.attributes));
    let plan = PublishRequest {
        place: VolumeOnNode::new("v", "n").unwrap(),
        capability: Capability {
            access: VolumeAccessType::Mount {
                fs_type: "",
                flags: &[],
            },
            mode: AccessMode::MultiNodeMultiWriter,
        },
        read_only: row.read_only,
        volume_context: &attributes,
        former: Vec::new(),
    };
    let secrets = row.secrets.map(|secrets| SecretData::new(map(secrets)));
    let call = ControllerPublishVolume {
        request: &plan,
        secrets: secrets.as_ref(),
    };
    within(stage.client.call(&call, LONG, &Span::disabled())).await
}

#[tokio::test]
async fn publishing() {
    tally("8.10", "attach call", PUBLISHES.len());
    for row in PUBLISHES {
        let stage = stage(row.answer.unwrap_or_default()).await;
        if let Err(code) = row.answer {
            stage
                .driver
                .script(Rule::on(Method::ControllerPublishVolume).fail(code, "no"));
        }
        let answer = published(&stage, &row).await;
        let call = only_call(&stage, Method::ControllerPublishVolume);
        assert_eq!(call.readonly, Some(row.read_only), "{}", row.name);
        assert_eq!(call.volume_context, map(row.attributes), "{}", row.name);
        assert_eq!(call.secret_keys, keys(row.secrets), "{}", row.name);
        match (answer, row.answer) {
            (Ok(context), Ok(wanted)) => assert_eq!(context, StringMap::from(map(wanted)), "{}", row.name),
            (Err(error), Err(wanted)) => {
                assert_eq!(error.code, wanted, "{}", row.name);
                let certain = Failure::from(&error).code.is_some_and(decide::is_final);
                assert_eq!(certain, row.detached, "{}", row.name);
            }
            (answer, _) => panic!("{}: {answer:?}", row.name),
        }
    }
}

#[tokio::test]
async fn unpublishing() {
    let foo: Option<Entries> = Some(&[("foo", "bar")]);
    let rows: [(&str, Option<Entries>, Result<(), Code>); 5] = [
        ("success", None, Ok(())),
        ("secrets", foo, Ok(())),
        ("gRPC final error", None, Err(Code::PermissionDenied)),
        ("gRPC transient error", None, Err(Code::DeadlineExceeded)),
        ("gRPC NotFound error", None, Err(Code::NotFound)),
    ];
    tally("8.10", "detach call", rows.len());
    for (name, secrets, answer) in rows {
        let stage = stage(&[]).await;
        if let Err(code) = answer {
            stage
                .driver
                .script(Rule::on(Method::ControllerUnpublishVolume).fail(code, "no"));
        }
        let place = VolumeOnNode::new("v", "n").unwrap();
        let data = secrets.map(|secrets| SecretData::new(map(secrets)));
        let call = ControllerUnpublishVolume {
            place,
            secrets: data.as_ref(),
        };
        let found = within(stage.client.call(&call, LONG, &Span::disabled())).await;
        assert_eq!(found.map_err(|error| error.code), answer, "{name}");
        let call = only_call(&stage, Method::ControllerUnpublishVolume);
        assert_eq!(call.secret_keys, keys(secrets), "{name}");
    }
}

/// Says how many rows a table of the sidecar's own tests has here, for `tests/sidecar-tables`.
#[allow(clippy::print_stdout, reason = "read by a script")]
fn tally(section: &str, table: &str, rows: usize) {
    println!("\nsidecar table|{section}|{table}|{rows}");
}

#[test]
fn the_numbers_of_codes_are_those_of_grpc() {
    use crate::decide::grpc_code;
    use tonic::Code;
    for (number, code) in [
        (grpc_code::OK, Code::Ok),
        (grpc_code::CANCELLED, Code::Cancelled),
        (grpc_code::DEADLINE_EXCEEDED, Code::DeadlineExceeded),
        (grpc_code::NOT_FOUND, Code::NotFound),
        (grpc_code::RESOURCE_EXHAUSTED, Code::ResourceExhausted),
        (grpc_code::ABORTED, Code::Aborted),
        (grpc_code::UNAVAILABLE, Code::Unavailable),
    ] {
        assert_eq!(Code::from_i32(number), code);
        assert_ne!(code, Code::Unknown);
    }
}
