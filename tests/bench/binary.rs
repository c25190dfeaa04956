//! The size of the operator's program.

use std::fs;

use crate::attacher;
use crate::support::{Error, Result};
use crate::table::{Row, Topic};

/// Looks at the file. The release profile strips it.
pub fn measure() -> Result<Vec<Row>> {
    let path = attacher::binary();
    let file = fs::metadata(&path).map_err(|error| Error::Other(format!("{}: {error}", path.display())))?;
    let size = file.len() as f64 / f64::from(1 << 20);
    Ok(vec![
        Row::new(Topic::Size, "binary, stripped", size, "MiB").at_most(15.0),
    ])
}
