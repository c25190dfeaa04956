//! The command line of the process.

use std::process::Output;

use crate::rig::within;
use crate::support::{Error, Result};

async fn run(arguments: &[&str]) -> Result<Output> {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_csi-attacher-operator"))
        .args(arguments)
        .kill_on_drop(true)
        .output();
    within("the process ends", output).await?.map_err(Error::from)
}

#[tokio::test]
async fn a_wrong_flag_is_named_and_the_exit_code_is_2() -> Result<()> {
    for (flag, named) in [
        ("--no-such-flag", "--no-such-flag"),
        ("--http-endpoint=nowhere", "--http-endpoint"),
        ("--shutdown-grace-period=soon", "--shutdown-grace-period"),
        ("--log-format=xml", "--log-format"),
    ] {
        let output = run(&[flag]).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(named), "{text}");
        assert!(output.stdout.is_empty());
    }
    Ok(())
}

#[tokio::test]
async fn why_it_cannot_start_is_a_line_of_the_log() -> Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let taken = format!("--http-endpoint={}", listener.local_addr()?);
    let broken = tempfile::NamedTempFile::new()?;
    std::fs::write(broken.path(), "clusters: 1")?;
    let broken = broken.path().display().to_string();
    let of_broken = format!("--kubeconfig={broken}");
    for (arguments, words) in [
        (["--kubeconfig=/nowhere", "--http-endpoint=127.0.0.1:0"], "/nowhere"),
        ([of_broken.as_str(), "--http-endpoint=127.0.0.1:0"], broken.as_str()),
        (["--kubeconfig=/nowhere", taken.as_str()], "--http-endpoint"),
    ] {
        let json = [&arguments[..], &["--log-format=json"]].concat();
        let output = run(&json).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let last = text.lines().last().unwrap_or_default();
        let line: serde_json::Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(line["level"], "ERROR", "{text}");
        let message = line["message"].as_str().unwrap_or_default();
        assert!(
            message.starts_with("cannot start: ") && message.contains(words),
            "{text}"
        );
        // Where errors are off, it is told all the same.
        let output = run(&[&arguments[..], &["--log-level=off"]].concat()).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.starts_with("csi-attacher-operator: ") && text.contains(words),
            "{text}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_log_level_that_is_none_is_named_and_the_exit_code_is_1() -> Result<()> {
    let output = run(&["--log-level=info,verbose", "--http-endpoint=127.0.0.1:0"]).await?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("--log-level: ") && text.contains(r#""verbose" is neither a level"#),
        "{text}"
    );
    Ok(())
}
