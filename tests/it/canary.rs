//! The values of a publish secret come out nowhere, not even when the driver puts them into its error messages.

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{Method, MockDriver, MockDriverBuilder, Rule, ScriptAction, ScriptedFailure};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;
use tonic::Code;

use crate::collectors::sends_to;
use crate::rig::LIMIT;
use crate::support::otlp::OtlpReceiver;
use crate::support::stage::{PUBLISH_SECRET, Stage, stop};
use crate::support::wait::wait_for;
use crate::support::{AuditEvent, Operator, Result, Volume};

const NAME: &str = "canary";
/// The last value contains the first, so that replacing the first one first would leave the rest behind. The one
/// between ends in a line end, which the driver's message does not show everywhere.
pub const SECRETS: [(&str, &str); 4] = [
    ("password", "sing-7c41e9d2"),
    ("pin", "whistle-03fd66\n"),
    ("token", "sing-7c41e9d2-louder-58b0"),
    ("zone", ESCAPED),
];
/// What every way to print it changes.
const ESCAPED: &str = "a\"b\\c+d/e=f&g \u{e9}chirp41f7c9\nsecond \"line\\";
/// A part of that which no way to print text changes.
const RUN: &str = "chirp41f7c9";
const DRIVER_MESSAGE: &str = "whistle-03fd66 refused for";
/// Names the libraries that are held at a higher level unless they are named.
pub const LOG_LEVEL: &str = "trace,h2=trace,hyper=trace,hyper_util=trace,tonic=trace,tower=trace,rustls=trace,kube_client=trace,kube_runtime=trace";
/// What comes out of the driver's message, after one mask for each of the forms that are put before it.
const MASKED: &str = "***stripped*** refused for ***stripped*** ***stripped***  ***stripped*** ***stripped***";

/// Parts of the secret in every shape in which they could leak.
pub struct Needles(Vec<String>);

impl Needles {
    pub fn new() -> Self {
        let mut needles = vec!["louder-58b0".to_owned()];
        for value in values() {
            needles.push(value.to_owned());
            let inner = (0..3).map(|offset| inner_base64(value, offset));
            needles.extend(inner.flat_map(|inner| [inner.replace('+', "-").replace('/', "_"), inner]));
            needles.extend([hex(value), hex(value).to_uppercase()]);
        }
        Self(needles)
    }

    /// The lines with a leak.
    pub fn find<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let lines = text.lines();
        lines
            .filter(|line| self.0.iter().any(|needle| line.contains(needle)))
            .collect()
    }
}

/// The values without line ends, which no search by lines would find; of the last one a part.
fn values() -> [&'static str; 4] {
    let [one, two, three, _] = SECRETS.map(|(_, value)| value.trim());
    [one, two, three, RUN]
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// [`ESCAPED`] as programs print it: JSON, also of ASCII only, `%q`, paths and queries of URLs, base64, hex.
fn forms() -> Vec<String> {
    let json = serde_json::to_string(ESCAPED).unwrap();
    let percent = |plain: &str| -> String {
        let encode = |byte: u8| match byte {
            _ if byte.is_ascii_alphanumeric() || plain.as_bytes().contains(&byte) => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        };
        ESCAPED.bytes().map(encode).collect()
    };
    let (whole, beside) = (base64(ESCAPED.as_bytes()), base64(format!("user:{ESCAPED}").as_bytes()));
    vec![
        json.clone(),
        json.replace('\u{e9}', "\\u00e9")
            .replace('/', "\\/")
            .replace('&', "\\u0026"),
        format!("{ESCAPED:?}"),
        percent("+=&$:@-_.~"),
        percent(" -_.~").replace(' ', "+"),
        percent("").to_lowercase(),
        whole.trim_end_matches('=').replace('+', "-").replace('/', "_"),
        whole,
        hex(ESCAPED),
        hex(ESCAPED).to_uppercase(),
        beside,
    ]
}

/// The driver's message as it comes out: all but the first characters of the last form, which are those of the user.
fn message() -> String {
    let mut masks: Vec<String> = forms().iter().map(|_| "***stripped***".to_owned()).collect();
    masks[0] = "\"***stripped***\"".to_owned();
    masks[1] = masks[0].clone();
    masks[2] = masks[0].clone();
    let last = masks.len() - 1;
    masks[last] = "dXNlcj***stripped***".to_owned();
    format!("rpc error: code = Internal desc = {} {MASKED}", masks.join(" "))
}

fn base64(bytes: &[u8]) -> String {
    let json = serde_json::to_value(ByteString(bytes.to_vec())).unwrap();
    json.as_str().unwrap().to_owned()
}

/// The characters of base64 which come from this text alone when `offset` bytes and more stand before it and something
/// else after it.
fn inner_base64(text: &str, offset: usize) -> String {
    let whole = base64(&[&vec![0; offset], text.as_bytes()].concat());
    let from = (offset * 8).div_ceil(6);
    let to = (offset + text.len()) * 8 / 6;
    whole[from..to].to_owned()
}

#[test]
fn the_search_finds_a_leak() {
    let needles = Needles::new();
    for value in values() {
        for before in ["", "a", "ab", "abc"] {
            let leak = format!("{before}{value}/after");
            assert_eq!(needles.find(&leak).len(), 1, "{leak}");
            assert_eq!(needles.find(&base64(leak.as_bytes())).len(), 1, "{leak}");
            assert_eq!(needles.find(&hex(&leak)).len(), 1, "{leak}");
        }
    }
    for form in forms() {
        assert_eq!(needles.find(&form).len(), 1, "{form}");
    }
    assert_eq!(needles.find("refused for ***stripped***").len(), 0);
}

#[tokio::test]
async fn a_publish_secret_comes_out_nowhere() -> Result<()> {
    let stage = Stage::enter().await?;
    let receiver = OtlpReceiver::grpc().await;
    stage.publish_secret(&SECRETS).await?;
    let options = sends_to(&receiver.endpoint(), "grpc").argument(format!("--log-level={LOG_LEVEL}"));
    let mut operator = stage.operator(options).await?;
    let driver = stage.driver(echoing(NAME), NAME).await?;
    let config = attach_and_detach(&stage, NAME).await?;
    let metrics = operator.metrics().await?;
    stop(&mut operator).await?;

    // The secret was really there: the driver got it, and put it into both errors.
    for method in [Method::ControllerPublishVolume, Method::ControllerUnpublishVolume] {
        let calls = driver.handle.calls_of(method);
        let codes: Vec<_> = calls.iter().filter_map(|call| call.code).collect();
        assert_eq!(codes, [Code::Internal, Code::Ok]);
        for call in calls {
            assert_eq!(call.secret_keys, SECRETS.map(|(key, _)| key));
        }
    }
    // The level was really the lowest, for the libraries underneath as well.
    for target in ["h2::", "hyper_util::", "kube_runtime::"] {
        let traced =
            |line: &str| line.contains("\"level\":\"TRACE\"") && line.contains(&format!("\"target\":\"{target}"));
        assert!(operator.log_text().lines().any(traced), "{target}");
    }
    let places = [
        ("log", operator.log_text()),
        ("spans", format!("{:#?}", receiver.spans())),
        ("VolumeAttachments as written", audited(&stage, "volumeattachments")?),
        ("AttacherConfig", config),
    ];
    for (place, text) in &places {
        assert!(text.contains(MASKED), "{place}: {text}");
    }
    let others = [
        ("metrics", metrics),
        ("events", events(&stage).await?),
        // Everything that anybody sent to the API server or got from it, but for the contents of secrets.
        (
            "audit log",
            std::fs::read_to_string(stage.cluster.audit_log()?).unwrap(),
        ),
    ];
    for (place, text) in places.iter().chain(&others) {
        let found = Needles::new().find(text);
        assert!(found.is_empty(), "{place}: {found:#?}");
    }
    assert_silent_about_keys(&operator, &receiver);
    Ok(())
}

/// A driver named `<name>.csi.test` which puts the values of the secrets into an error of each method.
pub fn echoing(name: &str) -> MockDriverBuilder {
    MockDriver::builder(driver_name(name))
        .accept_any_volume()
        .rule(echo(Method::ControllerPublishVolume))
        .rule(echo(Method::ControllerUnpublishVolume))
}

fn driver_name(name: &str) -> String {
    format!("{name}.csi.test")
}

/// The first call of this method fails, with the values of the secrets in its message.
fn echo(method: Method) -> Rule {
    Rule::on(method).times(1).action(ScriptAction::Fail(ScriptedFailure {
        code: Code::Internal,
        message: format!("{} {DRIVER_MESSAGE}", forms().join(" ")),
        echo_secrets: true,
        pad_bytes: 0,
    }))
}

/// Attaches and detaches a volume, each with a failure that shows on the VolumeAttachment. Answers the AttacherConfig
/// with the failure to detach in its status, as JSON.
pub async fn attach_and_detach(stage: &Stage, name: &str) -> Result<String> {
    let (fixtures, driver) = (&stage.fixtures, driver_name(name));
    let (namespace, secret) = PUBLISH_SECRET;
    fixtures.csi_node("canary-node", &driver, "node-id").await?;
    let volume = Volume::new(name, &driver, "handle").publish_secret(namespace, secret);
    fixtures.persistent_volume(&volume).await?;
    fixtures.volume_attachment(name, &driver, name, "canary-node").await?;
    fixtures.wait_for_attached(name).await?;
    fixtures.delete::<VolumeAttachment>(name).await?;
    fixtures.wait_for_attachment_gone(name).await?;
    let wanted = message();
    for error in ["attachError", "detachError"] {
        let is_error = |event: &AuditEvent| {
            let message = event
                .request_body
                .as_ref()
                .and_then(|body| body.pointer(&format!("/status/{error}/message")));
            event.name == name && message.and_then(Value::as_str) == Some(&*wanted)
        };
        stage.cluster.wait_for_audit_event(error, LIMIT, is_error).await?;
    }
    let configs = Api::<AttacherConfig>::all(stage.client.clone());
    let what = "the failure to detach in the status";
    let config = wait_for(configs, name, what, LIMIT, |config| {
        let failure = config.and_then(|config| config.status.as_ref()?.last_failure.as_ref());
        failure.is_some_and(|failure| failure.operation == "detach")
    })
    .await?;
    Ok(serde_json::to_string_pretty(&config)?)
}

/// The bodies of all requests that the operator sent about this resource.
pub fn audited(stage: &Stage, resource: &str) -> Result<String> {
    let events = stage.cluster.audit_events()?;
    let bodies = events
        .iter()
        .filter(|event| event.user_agent.starts_with("csi-attacher-operator/") && event.resource == resource)
        .filter_map(|event| event.request_body.as_ref().map(Value::to_string));
    Ok(bodies.collect::<Vec<_>>().join("\n"))
}

/// All events, as JSON.
pub async fn events(stage: &Stage) -> Result<String> {
    let events = Api::<Event>::all(stage.client.clone());
    let events = events.list(&ListParams::default()).await;
    let events = events.map_err(|error| crate::support::Error::Other(error.to_string()))?;
    Ok(serde_json::to_string_pretty(&events.items)?)
}

/// Names of keys stay inside as well: only their number may be told.
fn assert_silent_about_keys(operator: &Operator, receiver: &OtlpReceiver) {
    let text = format!("{}{:#?}", operator.log_text(), receiver.spans());
    for (key, _) in SECRETS {
        assert!(!text.contains(&format!("\"{key}\"")), "{key}");
    }
}
