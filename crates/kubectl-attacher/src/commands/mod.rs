//! The commands: read, explain, print; `retry` and `release` write.

mod drivers;
mod flags;
mod follow;
mod list;
mod listing;
mod release;
mod retry;
mod wait;
mod why;

pub use flags::ClusterFlags;

use clap::CommandFactory;
use clap_complete::Shell;
use csi_attacher_base::clock;
use kube::Client;
use std::io::Write;
use std::pin::Pin;

use crate::cli::{Cli, Command, GlobalOptions};
use crate::error::{EXIT_OK, PluginError, Result};
use crate::gather::{Reader, Sources, connect};
use crate::output::{Style, Text};

/// What every command starts from.
pub struct Context {
    pub client: Client,
    /// Namespace of objects that are named without one.
    pub namespace: String,
    pub style: Style,
    /// What the commands that are shown need to ask the same cluster.
    pub flags: ClusterFlags,
}

impl Context {
    /// Connects as kubectl would.
    async fn connect(global: &GlobalOptions) -> Result<Self> {
        let (client, namespace) = connect(global).await?;
        Ok(Self {
            client,
            namespace,
            style: Style::of(global.color),
            flags: ClusterFlags::of(global),
        })
    }

    /// Reads of the cluster as it is now.
    pub fn sources(&self) -> Sources {
        Sources::new(Reader::new(self.client.clone()), clock::now())
    }
}

/// Runs a command; the number is its exit code.
pub async fn run(cli: Cli) -> Result<u8> {
    let Cli { global, command } = cli;
    command.check()?;
    let connect = || Context::connect(&global);
    // Objects of all kinds are in these, so that they are large.
    let run: Pin<Box<dyn Future<Output = Result<u8>> + '_>> = match &command {
        Command::Why(arguments) => Box::pin(async { why::run(&connect().await?, arguments).await }),
        Command::List(arguments) => Box::pin(async { list::run(&connect().await?, arguments).await }),
        Command::Drivers(arguments) => Box::pin(async { drivers::run(&connect().await?, arguments).await }),
        Command::Wait(arguments) => Box::pin(async { wait::run(&connect().await?, arguments).await }),
        Command::Retry(arguments) => Box::pin(async { retry::run(&connect().await?, arguments).await }),
        Command::Release(arguments) => Box::pin(async { release::run(&connect().await?, arguments).await }),
        Command::Completion { shell } => {
            write(&mut std::io::stdout().lock(), completion_script(*shell).as_bytes())?;
            return Ok(EXIT_OK);
        }
    };
    run.await
}

/// The completion script of a shell. For bash, clap_complete writes the hyphen of the program's name in two ways (issue 6421
/// of clap), so that no word behind a command is completed.
fn completion_script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kubectl-attacher", &mut script);
    String::from_utf8_lossy(&script).replace("kubectl__subcmd__attacher", "kubectl__attacher")
}

/// Prints lines; whether somebody still reads. Who closed the pipe wants no more, which is no error.
pub(crate) fn print(text: &Text) -> Result<bool> {
    write(&mut std::io::stdout().lock(), text.as_str().as_bytes())
}

pub(crate) fn print_line(line: &str) -> Result<bool> {
    print(&Text::of(line))
}

/// Prints what there is to say of a VolumeAttachment.
fn print_of(attachment: &str, text: &str) -> Result<bool> {
    print_line(&format!("VolumeAttachment {attachment}: {text}"))
}

/// Tells a line on standard error, so that the result is alone on standard output.
pub fn tell(line: &str) {
    // Nobody is left to tell when standard error is closed.
    drop(std::io::stderr().write_all(Text::of(line).as_str().as_bytes()));
}

fn write(out: &mut impl Write, bytes: &[u8]) -> Result<bool> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(PluginError::Output(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    /// Standard output that cannot be written.
    struct Closed(ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The script goes from the words to the name of a command, and from that to what may follow.
    #[test]
    fn each_command_is_completed() {
        let script = completion_script(Shell::Bash);
        let mut count = 0;
        for line in script.lines() {
            let name = line
                .trim()
                .strip_prefix("cmd=\"")
                .and_then(|rest| rest.strip_suffix('"'));
            let Some(name) = name.filter(|name| !name.is_empty()) else {
                continue;
            };
            count += 1;
            assert!(script.contains(&format!("\n        {name})\n")), "{name} leads nowhere");
        }
        assert!(count > 7, "{script}");
        for kinds in [
            "--help pod pvc pv va node\"",
            "--help pvc pv va node\"",
            "--help va pv\"",
        ] {
            assert!(script.contains(kinds), "{kinds}: {script}");
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        assert!(write(&mut Vec::<u8>::new(), b"a").unwrap());
        assert!(!write(&mut Closed(ErrorKind::BrokenPipe), b"a").unwrap());
        assert!(write(&mut Closed(ErrorKind::StorageFull), b"a").is_err());
    }
}
