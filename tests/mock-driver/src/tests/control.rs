//! Commands by script, by control socket and by flags.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use super::*;
use crate::control::{ControlCommand, parse_command, parse_script};
use crate::control_socket::ControlSocket;
use crate::{ControllerCapability, Method, Rule, ScriptAction};

#[test]
fn a_script_is_a_list_of_commands() {
    let script = "
- rule:
    method: ControllerPublishVolume
    volume: v1
    times: 2
    action:
      fail: {code: RESOURCE_EXHAUSTED, message: too many}
- rule: {method: ControllerUnpublishVolume, delayMs: 1500, action: hang}
- driftAttach: {volume: v9, node: n9}
- capability: {name: LIST_VOLUMES, on: false}
- clearRules
";
    let fail = Rule::on(Method::ControllerPublishVolume).volume("v1").times(2);
    let hang = Rule::on(Method::ControllerUnpublishVolume)
        .delay(Duration::from_millis(1500))
        .hang();
    let expected = [
        ControlCommand::Rule(fail.fail(Code::ResourceExhausted, "too many")),
        ControlCommand::Rule(hang),
        ControlCommand::DriftAttach {
            volume: "v9".to_owned(),
            node: "n9".to_owned(),
        },
        ControlCommand::Capability {
            name: "LIST_VOLUMES".to_owned(),
            on: false,
        },
        ControlCommand::ClearRules,
    ];
    assert_eq!(parse_script(script).unwrap(), expected);
}

#[test]
fn mistakes_are_named() {
    for (line, expected) in [
        (r#"{"rule": {"metod": "Probe"}}"#, "metod"),
        (r#"{"rule": {"method": "Prob"}}"#, "Prob"),
        (r#"{"rule": {"action": {"fail": {"code": "BAD"}}}}"#, "BAD"),
        (r#"{"rule": {"action": {"fail": {"code": "OK"}}}}"#, "OK is no failure"),
        (r#"{"ready": {"on": true, "off": 1}}"#, "off"),
        (r#"{"fly": {}}"#, "fly"),
        ("", "EOF"),
    ] {
        let error = parse_command(line).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    let error = parse_script("- dump\n- nope").unwrap_err().to_string();
    assert!(error.contains("item 2") && error.contains("nope"), "{error}");
}

#[test]
fn every_command_can_be_written_and_read() {
    let text = |text: &str| text.to_owned();
    let commands = [
        ControlCommand::Rule(Rule::any().action(ScriptAction::DropConnectionAfterWork)),
        ControlCommand::Rule(Rule::any().until_released()),
        ControlCommand::CreateVolume {
            volume: text("v"),
            capacity_bytes: Some(5),
        },
        ControlCommand::DeleteVolume { volume: text("v") },
        ControlCommand::DriftDetach {
            volume: text("v"),
            node: text("n"),
        },
        ControlCommand::ControllerService { on: false },
        ControlCommand::Ready { on: false },
        ControlCommand::DriverName { name: text("d") },
        ControlCommand::Nodes {
            nodes: Some(vec![text("n")]),
        },
        ControlCommand::AttachLimit {
            node: None,
            limit: Some(3),
        },
        ControlCommand::Delay {
            method: Method::Probe,
            delay_ms: 7,
        },
        ControlCommand::Condition {
            volume: text("v"),
            abnormal: true,
            message: text("broken"),
        },
        ControlCommand::DropConnections,
        ControlCommand::Calls,
        ControlCommand::Dump,
    ];
    for command in commands {
        assert_eq!(
            parse_command(&serde_json::to_string(&command).unwrap()).unwrap(),
            command
        );
    }
}

#[tokio::test]
async fn the_control_socket_changes_the_driver_and_answers_each_line() {
    let fixture = Fixture::new(|builder| builder).await;
    let path = fixture.directory.path().join("control.sock");
    let control = ControlSocket::start(&path, &fixture.mock).unwrap();
    let (reader, mut writer) = UnixStream::connect(&path).await.unwrap().into_split();
    let mut lines = BufReader::new(reader).lines();
    let mut ask = async |line: &str| -> Value {
        writer.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        serde_json::from_str(&bounded(lines.next_line()).await.unwrap().unwrap()).unwrap()
    };
    let ok = json!({"ok": true});
    for line in [
        r#"{"driftAttach": {"volume": "v1", "node": "n1"}}"#,
        r#"{"capability": {"name": "LIST_VOLUMES", "on": false}}"#,
        r#"{"capability": {"name": "VOLUME_CONDITION", "on": true}}"#,
        r#"{"condition": {"volume": "v1", "abnormal": true, "message": "lame"}}"#,
        r#"{"attachLimit": {"node": "n2", "limit": 0}}"#,
        r#"{"ready": {"on": false}}"#,
        r#"{"rule": {"times": 1}}"#,
    ] {
        assert_eq!(ask(line).await, ok, "{line}");
    }
    let state = ask("\"dump\"").await;
    assert_eq!(state["result"]["volumes"]["v1"]["publishedNodeIds"], json!(["n1"]));
    assert_eq!(
        (&state["result"]["ready"], &state["result"]["rules"][0]["times"]),
        (&json!(false), &json!(1))
    );
    let unknown = ask(r#"{"driftDetach": {"volume": "v2", "node": "n1"}}"#).await;
    assert_eq!(
        unknown,
        json!({"ok": false, "error": "volume \"v2\" is not attached to node \"n1\""})
    );
    assert_eq!(ask("nonsense").await["ok"], json!(false));
    assert_eq!(ask("\"clearRules\"").await, ok);

    let mut client = fixture.controller().await;
    assert_eq!(
        code(&client.controller_publish_volume(publish("v2", "n2")).await),
        Code::ResourceExhausted
    );
    let found = client
        .controller_get_volume(v1::ControllerGetVolumeRequest {
            volume_id: "v1".to_owned(),
        })
        .await;
    let status = found.unwrap().into_inner().status.unwrap();
    assert_eq!(
        (status.published_node_ids, status.volume_condition.unwrap().message),
        (vec!["n1".to_owned()], "lame".to_owned())
    );
    assert!(
        state["result"]["capabilities"]
            .as_array()
            .unwrap()
            .iter()
            .all(|name| name != "LIST_VOLUMES")
    );
    assert_eq!(ask("\"calls\"").await["result"][0]["code"], json!("RESOURCE_EXHAUSTED"));
    drop(control);
    assert!(!path.exists());
}

#[tokio::test]
async fn drift_and_wrong_commands() {
    let fixture = Fixture::new(|builder| builder).await;
    fixture.mock.drift_attach("v1", "n1");
    assert!(fixture.mock.drift_detach("v1", "n1") && !fixture.mock.drift_detach("v1", "n1"));
    let unknown = ControlCommand::Capability {
        name: "FLY".to_owned(),
        on: true,
    };
    assert!(fixture.mock.apply(unknown).unwrap_err().to_string().contains("FLY"));
    let missing = ControlCommand::DeleteVolume {
        volume: "v7".to_owned(),
    };
    assert!(fixture.mock.apply(missing).unwrap_err().to_string().contains("v7"));
    fixture.mock.set_capability(ControllerCapability::GetVolume, false);
    let mut client = fixture.controller().await;
    let found = client
        .controller_get_volume(v1::ControllerGetVolumeRequest {
            volume_id: "v1".to_owned(),
        })
        .await;
    assert_eq!(code(&found), Code::Unimplemented);
}
