//! What Argo CD says of the health of an AttacherConfig: its Lua script, run by Lua.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::prometheus::of_repository;

const KEY: &str = "resource.customizations.health.attacher.csi.dev_AttacherConfig";

fn script() -> String {
    let text = fs::read_to_string(of_repository("config/argocd/health.yaml")).unwrap();
    let manifest: Value = serde_yaml::from_str(&text).unwrap();
    manifest["data"][KEY].as_str().unwrap().to_owned()
}

/// A value as Lua writes it.
fn lua(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, field)| format!("[{name:?}] = {}", lua(field)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("{{{}}}", items.iter().map(lua).collect::<Vec<_>>().join(", ")),
        plain => plain.to_string(),
    }
}

fn health(interpreter: &str, object: &Value) -> String {
    let program = format!(
        "obj = {}\nlocal function health()\n{}\nend\nlocal said = health()\nprint(said.status .. \": \" .. said.message)\n",
        lua(object),
        script()
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("health.lua");
    fs::write(&file, program).unwrap();
    let output = Command::new(interpreter).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn the_health_is_what_the_conditions_say() {
    let found = Command::new(of_repository("tests/argocd/lua")).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let interpreter = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let condition = |name: &str, status: &str, reason: &str, message: &str, generation: i64| json!({"type": name, "status": status, "reason": reason, "message": message, "observedGeneration": generation});
    let ready = |status: &str, reason: &str| condition("Ready", status, reason, "so it is", 2);
    let fine = condition("Stalled", "False", "NotStalled", "", 2);
    for (conditions, expected) in [
        (json!(null), "Progressing: no replica has looked at it yet"),
        (json!([]), "Progressing: no replica has looked at it yet"),
        (json!([ready("True", "Running"), fine]), "Healthy: so it is"),
        (json!([ready("True", "Standby"), fine]), "Healthy: so it is"),
        (json!([ready("True", "Suspended"), fine]), "Suspended: so it is"),
        (
            json!([ready("False", "DriverUnreachable"), fine]),
            "Progressing: so it is",
        ),
        (
            json!([
                ready("False", "InvalidSpec"),
                condition("Stalled", "True", "InvalidSpec", "spec.endpoint", 2)
            ]),
            "Degraded: spec.endpoint",
        ),
        // A driver that is still served with its last valid settings, and settings that nobody looked at yet.
        (
            json!([
                ready("True", "Running"),
                condition("Stalled", "True", "InvalidSpec", "spec.endpoint", 2)
            ]),
            "Degraded: spec.endpoint",
        ),
        (
            json!([condition("Ready", "True", "Running", "so it was", 1), fine]),
            "Progressing: no replica has looked at this generation yet",
        ),
    ] {
        let object = json!({"metadata": {"generation": 2}, "status": {"conditions": conditions}});
        assert_eq!(health(&interpreter, &object), expected, "{object}");
    }
    let without = json!({"metadata": {"generation": 1}});
    assert_eq!(
        health(&interpreter, &without),
        "Progressing: no replica has looked at it yet"
    );
}
