//! kubectl completes the words of the plugin, with the file that the page has for it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::plugin::Plugin;
use crate::rig::{World, within};
use crate::support::Result;

/// Words behind `kubectl attacher`, of which the last is not complete, and what it can become.
const ROWS: [(&[&str], &[&str]); 9] = [
    (&["wh"], &["why"]),
    (&["why", "p"], &["pod", "pvc", "pv"]),
    (&["-n", "shop", "why", "n"], &["node"]),
    (&["release", "v"], &["va"]),
    (&["wait", "pv"], &["pvc", "pv"]),
    (&["wait", "--for", ""], &["detached", "attached"]),
    (&["list", "--stuck-"], &["--stuck-after"]),
    (&["completion", "ba"], &["bash"]),
    (&["list", "--nothing"], &[]),
];

/// The file of docs/operate/KUBECTL-ATTACHER.md.
fn file() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operate/KUBECTL-ATTACHER.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("```bash\n").unwrap();
    rest.split_once("```\n").unwrap().0.to_owned()
}

#[tokio::test]
async fn kubectl_completes_with_the_file_of_the_page() -> Result<()> {
    let world = World::managed().await?;
    let plugin = Plugin::of(&world).await?;
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("kubectl_complete-attacher");
    std::fs::write(&program, file())?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    for (words, expected) in ROWS {
        let completing = plugin.completion(folder.path(), words).output();
        let output = within("kubectl __complete", completing).await??;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> = printed.lines().collect();
        // The last line tells kubectl not to complete names of files.
        assert_eq!(lines, [expected, &[":4"]].concat(), "{words:?}: {output:?}");
    }
    Ok(())
}
