//! What the README tells to run is what is run. `documents` holds its names, links and examples
//! against the code, as those of all documents.

use std::path::Path;

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    text.expect("the file can be read")
}

/// The chart's own README tells the same command.
#[test]
fn the_command_to_install_is_that_of_the_chart() {
    let command = |text: &str| {
        let line = text
            .lines()
            .map(|line| line.trim_start_matches("$ "))
            .find(|line| line.starts_with("helm install "));
        line.map(|line| line.trim_end_matches(" --wait").to_owned())
    };
    let (ours, charts) = (
        command(&read("README.md")),
        command(&read("charts/csi-attacher-operator/README.md")),
    );
    assert!(ours.is_some());
    assert_eq!(ours, charts);
}

/// What `tests/readme-blocks` prints for this text, or its complaint.
fn blocks_of(text: &str) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let file = folder.path().join("A.md");
    std::fs::write(&file, text).expect("it can be written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/readme-blocks");
    let output = std::process::Command::new(script).arg(&file).output();
    let output = output.expect("the script starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

/// The walk on a real cluster runs what the README says, and nothing else.
#[test]
fn its_commands_can_be_run_one_by_one() {
    let script = blocks_of(&read("README.md")).expect("the README has marks in their places");
    for command in [
        "walk_registry 'docker build -t registry.example.com/csi-attacher-operator:0.1.0 .'",
        "walk_file 'my-values.yaml' <<",
        "walk_run 'helm install csi-attacher-operator charts/csi-attacher-operator ",
        "walk_run 'kubectl get attacherconfigs'",
        "walk_elsewhere 'make test'",
    ] {
        assert!(
            script.contains(&format!("\n{command}")) || script.starts_with(command),
            "{command}: {script}"
        );
    }
    let text = "```console\n$ echo it's \\\n  two  # lines\noutput\n```\n<!-- walk: registry -->\n```console\npush\n```\n```yaml\nno: file\n```\n";
    assert_eq!(
        blocks_of(text).as_deref(),
        Ok("walk_run 'echo it'\\''s   two'\nwalk_registry 'push'\n")
    );
}

/// An image that nobody was told to build cannot be pulled: the pods of the page and of its example have only such as are built and pushed before.
#[test]
fn every_image_is_built_and_pushed_before() {
    const REGISTRY: &str = "registry.example.com/";
    let text = read("README.md");
    let script = blocks_of(&text).expect("the README has marks in their places");
    let named = |command: &str| -> Vec<String> {
        let lines = script
            .lines()
            .filter(|line| line.starts_with(&format!("walk_registry '{command} ")));
        let words = lines.flat_map(|line| line.split([' ', '\'']));
        words
            .filter(|word| word.starts_with(REGISTRY))
            .map(str::to_owned)
            .collect()
    };
    let (built, pushed) = (named("docker build"), named("docker push"));
    assert_eq!(built, pushed);
    let operator = format!("{REGISTRY}csi-attacher-operator:{}", env!("CARGO_PKG_VERSION"));
    assert!(built.contains(&operator), "{built:?}");
    let mut asked = vec![operator];
    for file in [&text, &read("config/examples/kustomize/driver.yaml")] {
        let images = file.lines().filter_map(|line| line.trim().strip_prefix("image: "));
        asked.extend(images.filter(|image| image.starts_with(REGISTRY)).map(str::to_owned));
    }
    assert!(asked.len() > 2, "{asked:?}");
    for image in asked {
        assert!(built.contains(&image), "{image} is not among {built:?}");
    }
}

#[test]
fn a_mark_in_the_wrong_place_is_found() {
    for (text, complaint) in [
        (
            "<!-- walk: regitsry -->\n```console\na\n```\n",
            "there is no mark regitsry",
        ),
        (
            "<!-- walk: registry -->\n\n```console\na\n```\n",
            "not just before a block",
        ),
        ("<!-- walk: registry -->\n", "not before a block"),
        ("```console\na\n", "not closed"),
    ] {
        let said = blocks_of(text).expect_err(text);
        assert!(said.contains(complaint), "{text}: {said}");
    }
}
