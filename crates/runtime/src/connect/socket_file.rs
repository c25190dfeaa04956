//! Whether it is worth while to dial a unix socket again at which nobody answered, and whether one that was dialled was replaced.
//!
//! To connect and to find out why that failed costs much more than a look at the file. A driver that starts makes its socket anew,
//! so that the file, or its folder, is another one than it was.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

use crate::csi::{DialError, DialFault};

/// After so long a path where no socket was is dialled although nothing has changed.
const MAX_ABSENCE: Duration = Duration::from_secs(30);
/// The same for a file that refused: what was wrong need not be the file alone.
const MAX_REFUSAL: Duration = Duration::from_secs(10);

/// What a file is, by device, inode and time of the last change; or why that is not known.
type FileIdentity = Result<(u64, u64, i64, i64), ErrorKind>;

/// What is at the path of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFile {
    socket: FileIdentity,
    folder: FileIdentity,
}

impl SocketFile {
    /// Looks at a path. Before a dial: what is made during it must count as new.
    ///
    /// This is on the runtime's own threads, as the dial is, which has to find the path as well: a look takes some microseconds, and
    /// to hand it to another thread takes thirty times as long.
    pub fn at(path: &Path) -> Self {
        Self {
            folder: path.parent().map_or(Err(ErrorKind::NotFound), identity),
            socket: identity(path),
        }
    }

    /// Whether there was anything.
    pub fn is_there(&self) -> bool {
        self.socket.is_ok()
    }

    /// Whether another socket is at the path now. Its owner and mode may change, and nothing need be there: that is no other one to
    /// dial. A connection to a socket keeps its inode, so that no later file has the number of that one.
    pub fn is_replaced_at(&self, path: &Path) -> bool {
        let Ok((device, inode, ..)) = self.socket else {
            return false;
        };
        std::fs::metadata(path)
            .is_ok_and(|found| found.file_type().is_socket() && (found.dev(), found.ino()) != (device, inode))
    }
}

/// A path where the file itself is why nobody answered.
#[derive(Clone, Debug)]
pub(super) struct MissedSocket {
    file: SocketFile,
    until: Instant,
}

impl MissedSocket {
    /// Takes in that a dial failed. None where no change of the file would show that the next one succeeds.
    pub fn new(file: SocketFile, error: &DialError) -> Option<Self> {
        let rest = match error.fault {
            DialFault::SocketMissing(_) => MAX_ABSENCE,
            DialFault::NotASocket(_)
            | DialFault::PathTooLong(_)
            | DialFault::PermissionDenied(_)
            | DialFault::Refused(_) => MAX_REFUSAL,
            // A full listen queue is emptied by the process behind the same file.
            DialFault::Busy | DialFault::Tls(_) | DialFault::TimedOut(_) | DialFault::Other(_) => return None,
        };
        let until = Instant::now() + rest;
        Some(Self { file, until })
    }

    /// Whether another dial may come to something else.
    pub fn is_worth_a_dial(&self, path: &Path) -> bool {
        Instant::now() >= self.until || SocketFile::at(path) != self.file
    }
}

fn identity(path: &Path) -> FileIdentity {
    let metadata = std::fs::metadata(path).map_err(|error| error.kind())?;
    Ok((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn missed(path: &Path, fault: DialFault) -> Option<MissedSocket> {
        let address = path.display().to_string();
        MissedSocket::new(SocketFile::at(path), &DialError { address, fault })
    }

    fn missing(path: &Path) -> MissedSocket {
        missed(path, DialFault::SocketMissing(String::new())).expect("the file decides")
    }

    #[tokio::test(start_paused = true)]
    async fn a_dial_waits_for_another_file_only_where_the_file_was_to_blame() {
        let nothing = String::new;
        let rows = [
            (DialFault::SocketMissing(nothing()), Some(MAX_ABSENCE)),
            (DialFault::NotASocket(nothing()), Some(MAX_REFUSAL)),
            (DialFault::PathTooLong(108), Some(MAX_REFUSAL)),
            (DialFault::Refused(None), Some(MAX_REFUSAL)),
            (DialFault::Busy, None),
            (DialFault::TimedOut(MAX_REFUSAL), None),
            (DialFault::Other(nothing()), None),
        ];
        for (fault, rest) in rows {
            let missed = missed(Path::new("/nowhere/csi.sock"), fault.clone());
            let found = missed.map(|missed| missed.until.duration_since(Instant::now()));
            assert_eq!(found, rest, "{fault}");
        }
    }

    #[test]
    fn another_socket_at_the_path_is_found_and_nothing_else() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        let dialled = UnixListener::bind(&path).unwrap();
        let file = SocketFile::at(&path);
        assert!(!file.is_replaced_at(&path));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!file.is_replaced_at(&path), "another mode");
        std::fs::remove_file(&path).unwrap();
        assert!(!file.is_replaced_at(&path), "nothing to dial");
        std::fs::write(&path, "").unwrap();
        assert!(!file.is_replaced_at(&path), "no socket");
        std::fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        assert!(file.is_replaced_at(&path));
        drop(dialled);
    }

    #[tokio::test(start_paused = true)]
    async fn a_path_is_dialled_again_when_something_has_changed_or_after_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugins/csi.sock");
        let missed = missing(&path);
        assert!(!missed.is_worth_a_dial(&path));
        std::fs::create_dir(folder.path().join("plugins")).unwrap();
        assert!(missed.is_worth_a_dial(&path), "another reason");

        let missed = missing(&path);
        assert!(!missed.is_worth_a_dial(&path));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(missed.is_worth_a_dial(&path), "it is there");
        drop(listener);

        let missed = missing(&path);
        assert!(!missed.is_worth_a_dial(&path), "nobody listens any more");
        std::fs::remove_file(&path).unwrap();
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(missed.is_worth_a_dial(&path), "made anew");

        let missed = missing(&path);
        tokio::time::advance(MAX_ABSENCE).await;
        assert!(missed.is_worth_a_dial(&path), "after a while");
    }
}
