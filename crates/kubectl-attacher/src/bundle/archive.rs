//! Files into a `tar.gz`.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use tar::{Builder, Header};

/// Writes named texts as an archive, below one folder.
pub fn archive(out: impl Write, folder: &str, files: &[(String, String)], seconds: u64) -> std::io::Result<()> {
    let mut builder = Builder::new(GzEncoder::new(out, Compression::default()));
    for (name, text) in files {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(seconds);
        header.set_cksum();
        builder.append_data(&mut header, format!("{folder}/{name}"), text.as_bytes())?;
    }
    builder.into_inner()?.finish()?.flush()
}
