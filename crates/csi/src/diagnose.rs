//! Why a unix socket cannot be dialled, from what is at its path, and what mends it.

use std::fmt;
use std::fs::{self, FileType, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const OWNER: u32 = 0o700;
const GROUP: u32 = 0o070;
const OTHERS: u32 = 0o007;
/// As many symlinks as the kernel follows.
const MAX_LINKS: usize = 40;
/// How many entries of a directory are looked at for sockets.
const MAX_ENTRIES: usize = 256;
/// Sockets beside one that is missing are named up to this many. A directory with more is that of many drivers, and says nothing about this one.
const MAX_SOCKETS: usize = 3;
/// Longest name of a socket that is shown.
const MAX_NAME_BYTES: usize = 64;

/// Whom a file belongs to, and who may do what with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePermissions {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl From<&Metadata> for FilePermissions {
    fn from(meta: &Metadata) -> Self {
        let (uid, gid, mode) = (meta.uid(), meta.gid(), meta.mode() & 0o7777);
        Self { uid, gid, mode }
    }
}

impl fmt::Display for FilePermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "owner {}:{}, mode {:04o}", self.uid, self.gid, self.mode)
    }
}

/// Who this process is to the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessIds {
    uid: u32,
    gid: u32,
    /// Supplementary groups.
    groups: Vec<u32>,
}

impl ProcessIds {
    /// As the kernel tells it; `None` where there is no such file.
    fn of_this_process() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/self/status").ok()?)
    }

    /// From `/proc/PID/status`, see proc(5): the last of four IDs is that for the file system.
    fn read(status: &str) -> Option<Self> {
        let numbers = |key: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        };
        Some(Self {
            uid: *numbers("Uid:")?.get(3)?,
            gid: *numbers("Gid:")?.get(3)?,
            groups: numbers("Groups:")?,
        })
    }

    fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// The permission bits that count for us; the kernel looks at one class only.
    fn class(&self, file: FilePermissions) -> u32 {
        if self.uid == file.uid {
            OWNER
        } else if self.is_in(file.gid) {
            GROUP
        } else {
            OTHERS
        }
    }
}

impl fmt::Display for ProcessIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}, group {}", self.uid, self.gid)?;
        let further: Vec<String> = self
            .groups
            .iter()
            .filter(|group| **group != self.gid)
            .map(u32::to_string)
            .collect();
        if further.is_empty() {
            return Ok(());
        }
        write!(f, ", further groups {}", further.join(" "))
    }
}

/// What stands between us and a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessBarrier {
    /// The socket, or the directory on the way that cannot be entered.
    path: PathBuf,
    directory: bool,
    /// Whom it belongs to; `None` when even that cannot be seen.
    file: Option<FilePermissions>,
    /// Who we are; `None` when the kernel does not tell.
    ourselves: Option<ProcessIds>,
}

impl AccessBarrier {
    /// Finds out what forbids the socket at `path`.
    pub(super) fn find(path: &Path) -> Self {
        let found = deepest(path);
        let (path, meta) = found.map_or_else(|| (path.to_owned(), None), |(path, meta)| (path, Some(meta)));
        // What is behind a symlink is to be mended, not the symlink.
        let path = fs::canonicalize(&path).unwrap_or(path);
        Self {
            directory: meta.as_ref().is_some_and(Metadata::is_dir),
            file: meta.as_ref().map(FilePermissions::from),
            ourselves: ProcessIds::of_this_process(),
            path,
        }
    }

    /// The permission that is needed: to write to a socket, to enter a directory; unix(7), path_resolution(7).
    fn needed(&self) -> (u32, &'static str, &'static str) {
        if self.directory {
            (0o111, "enter (x)", "0770")
        } else {
            (0o222, "write (w)", "0660")
        }
    }

    fn fix(&self, file: FilePermissions, ourselves: &ProcessIds) -> String {
        let (needed, _, good) = self.needed();
        let FilePermissions { uid, gid, mode } = file;
        let allows = |class: u32| mode & needed & class != 0;
        let class = ourselves.class(file);
        let as_owner = if uid == 0 {
            "podSecurityContext.runAsUser: 0 and runAsNonRoot: false".to_owned()
        } else {
            format!("podSecurityContext.runAsUser: {uid}")
        };
        let made_so = format!("have the driver make it with mode {good}");
        if allows(class) {
            "its mode allows that, so something else forbids it: SELinux or AppArmor on the node (podSecurityContext.seLinuxOptions)"
                .to_owned()
        } else if class == OWNER {
            format!("{made_so} (its umask removes the permission)")
        } else if class == GROUP && allows(OWNER) {
            format!("{made_so} (umask 0007), or run the operator as its owner ({as_owner})")
        } else if class == OTHERS && allows(GROUP) {
            format!("give the pod its group (podSecurityContext.supplementalGroups: [{gid}])")
        } else if class == OTHERS && allows(OWNER) {
            format!(
                "run the operator as its owner ({as_owner}), or {made_so} and give the pod its group \
                 (podSecurityContext.supplementalGroups: [{gid}]; for an emptyDir, fsGroup gives all containers one)"
            )
        } else {
            made_so
        }
    }
}

impl fmt::Display for AccessBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.directory { "the directory" } else { "the socket" };
        write!(f, "permission denied: {what} {}", self.path.display())?;
        let (_, needed, _) = self.needed();
        match (self.file, &self.ourselves) {
            (Some(file), Some(ourselves)) => {
                let mend = self.fix(file, ourselves);
                write!(
                    f,
                    " has {file}; the operator is {ourselves} and needs to {needed} it: {mend}"
                )
            }
            (Some(file), None) => write!(f, " has {file}; the operator's user needs to {needed} it"),
            (None, _) => write!(
                f,
                ", or one above it, cannot be seen by the operator's user, which needs to {needed} it"
            ),
        }
    }
}

/// The last thing on the way along a path that can be seen. Symlinks that lead to something that can be seen are
/// followed, so that one that is found leads nowhere.
fn deepest(path: &Path) -> Option<(PathBuf, Metadata)> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let (found, meta) = path
            .ancestors()
            .find_map(|part| Some((part.to_owned(), fs::symlink_metadata(part).ok()?)))?;
        if !meta.is_symlink() {
            return Some((found, meta));
        }
        if let Ok(meta) = fs::metadata(&found) {
            return Some((found, meta));
        }
        let target = found.parent()?.join(fs::read_link(&found).ok()?);
        // Where it leads is not there at all: then the link itself is what there is to tell of.
        if is_nowhere(&target) {
            return Some((found, meta));
        }
        path = target;
    }
    None
}

/// Whether nothing is at the path, as opposed to something that cannot be seen.
fn is_nowhere(path: &Path) -> bool {
    matches!(fs::symlink_metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

/// What is wrong when nothing is at the path of a socket.
pub(super) fn missing(path: &Path) -> String {
    const RUNNING: &str = "is the driver running and its socket directory mounted into this pod?";
    let Some((found, meta)) = deepest(path) else {
        return RUNNING.to_owned();
    };
    if meta.is_symlink() {
        let target = fs::read_link(&found).unwrap_or_default();
        return format!(
            "{} is a symlink to {}, which is not there; mount the directory that it leads to, or name that socket in \
             spec.endpoint",
            found.display(),
            target.display()
        );
    }
    let parent = path.parent().unwrap_or(path);
    if found == parent || parent.exists() {
        let Some(sockets) = beside(parent) else {
            return RUNNING.to_owned();
        };
        return format!(
            "its directory has {sockets}: if the driver's is among these, name it in spec.endpoint; \
             else: {RUNNING}"
        );
    }
    format!(
        "not even its directory {} is there; mount the driver's socket directory into this pod (drivers.NAME.hostPath or \
         drivers.NAME.container in the chart, else volumes and volumeMounts)",
        parent.display()
    )
}

/// The sockets in a directory; `None` where there are none, or too many for a hint.
fn beside(directory: &Path) -> Option<String> {
    let entries = fs::read_dir(directory).ok()?.take(MAX_ENTRIES).flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    // Whoever writes into the directory chooses the names.
    let names = sockets.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_plain(name)).collect();
    names.sort_unstable();
    (1..=MAX_SOCKETS).contains(&names.len()).then(|| names.join(", "))
}

fn is_plain(name: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= MAX_NAME_BYTES && name.bytes().all(is_usual)
}

/// A path in messages: in quotes where it begins or ends with a blank, which nobody would see.
pub(super) fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    if text.trim() == text { text } else { format!("{text:?}") }
}

/// What is at a path, or on the way to it, where there should be a socket; `None` when it is one.
pub(super) fn something_else(path: &Path) -> Option<String> {
    let (found, meta) = deepest(path)?;
    let kind = kind_of(meta.file_type())?;
    let facts = FilePermissions::from(&meta);
    if found != path && !path.is_symlink() {
        // In a directory there is room for a socket: it went just now.
        if meta.is_dir() {
            return None;
        }
        return Some(format!(
            "{} is {kind} ({facts}), so that no socket can be below it",
            found.display()
        ));
    }
    let mend = if meta.is_dir() {
        "name the socket in it"
    } else {
        "name the driver's socket"
    };
    Some(format!("is {kind} ({facts}) and not a socket; {mend} in spec.endpoint"))
}

/// In a word; `None` for a socket.
fn kind_of(kind: FileType) -> Option<&'static str> {
    let kinds = [
        (kind.is_dir(), "a directory"),
        (kind.is_file(), "a regular file"),
        (kind.is_symlink(), "a symlink that leads nowhere"),
        (kind.is_fifo(), "a named pipe"),
    ];
    let known = kinds.iter().find(|(is_this, _)| *is_this);
    (!kind.is_socket()).then(|| known.map_or("a device", |(_, name)| *name))
}

/// Whom a socket belongs to, if it can be seen.
pub(super) fn facts(path: &Path) -> Option<FilePermissions> {
    fs::metadata(path).ok().as_ref().map(FilePermissions::from)
}

#[cfg(test)]
mod tests;
