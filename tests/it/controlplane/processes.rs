//! Proves that nothing outlives the process, or the value, which started it.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, interval};

use crate::rig::own_control_plane;
use crate::support::{ControlPlane, Options, Result};

const HOLDER: &str = "controlplane::processes::holds_a_control_plane_until_it_is_killed";
const HELD: &str = "held: ";

/// Not a test of its own: [`sigkill_of_the_test_process_ends_all_components`] runs it in a child process.
#[tokio::test]
#[ignore = "a process of another test"]
async fn holds_a_control_plane_until_it_is_killed() -> Result<()> {
    let control_plane = ControlPlane::start(Options {
        controller_manager: true,
        ..Options::default()
    })
    .await?;
    let held = Held {
        url: control_plane.url(),
        folder: control_plane.folder().to_owned(),
        groups: control_plane.process_groups(),
    };
    println!("{HELD}{}", held.to_line());
    // Ends by itself when the test that wants it killed is gone.
    std::io::read_to_string(std::io::stdin()).expect("standard input is a pipe");
    Ok(())
}

#[tokio::test]
async fn sigkill_of_the_test_process_ends_all_components() {
    let _permit = own_control_plane().await;
    let mut holder = start_holder();
    let held = read_held(&mut holder).await.expect("the holder starts a control plane");
    assert_eq!(held.groups.len(), 3, "etcd, kube-apiserver and kube-controller-manager");
    assert_eq!(
        count_running(&held.groups).await,
        9,
        "each with a watchdog of two shells"
    );
    assert!(held.folder.exists() && held.accepts_connections());

    holder.kill().await.expect("the holder can be killed");
    held.wait_until_gone().await;
}

/// What a control plane has that must go away.
struct Held {
    url: String,
    folder: PathBuf,
    groups: Vec<u32>,
}

impl Held {
    fn to_line(&self) -> String {
        let groups: Vec<_> = self.groups.iter().map(ToString::to_string).collect();
        format!("{} {} {}", self.url, groups.join(","), self.folder.display())
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut words = line.splitn(3, ' ');
        let url = words.next()?.to_owned();
        let groups = words
            .next()?
            .split(',')
            .map(str::parse)
            .collect::<std::result::Result<_, _>>()
            .ok()?;
        Some(Self {
            url,
            groups,
            folder: Path::new(words.next()?).to_owned(),
        })
    }

    fn accepts_connections(&self) -> bool {
        TcpStream::connect(self.url.trim_start_matches("https://")).is_ok()
    }

    /// Nobody tells a process that a stranger's child ended, so this looks again and again, for a minute at most.
    async fn wait_until_gone(&self) {
        let deadline = Instant::now() + Duration::from_mins(1);
        let mut ticks = interval(Duration::from_millis(50));
        loop {
            ticks.tick().await;
            let running = count_running(&self.groups).await;
            if running == 0 && !self.folder.exists() && !self.accepts_connections() {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{running} processes run, folder: {}",
                self.folder.display()
            );
        }
    }
}

fn start_holder() -> Child {
    Command::new(std::env::current_exe().expect("the test binary has a path"))
        .args(["--exact", HOLDER, "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the test binary can be started")
}

/// What the holder says it holds; `None` when it ends without saying so.
async fn read_held(holder: &mut Child) -> Option<Held> {
    let mut lines = BufReader::new(holder.stdout.take().expect("it is a pipe")).lines();
    while let Some(line) = lines.next_line().await.expect("it is text") {
        // libtest may have written the name of the test on the same line.
        if let Some((_, held)) = line.split_once(HELD) {
            return Held::from_line(held);
        }
    }
    None
}

/// How many processes in these groups run. One that is dead and only waits to be reaped does not count: after the
/// death of its parent that is the business of the init process.
async fn count_running(groups: &[u32]) -> usize {
    let output = Command::new("ps")
        .args(["-A", "-o", "pgid=,stat="])
        .output()
        .await
        .expect("ps runs");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.trim().split_once(char::is_whitespace))
        .filter(|(group, state)| {
            group.parse().is_ok_and(|group: u32| groups.contains(&group)) && !state.trim().starts_with('Z')
        })
        .count()
}
