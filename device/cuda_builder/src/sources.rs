//! The sources of an [`Archive`](crate::archive::Archive) that a checkout carries. A file beside the archive
//! names every source, and has a digest of their content. A build uses the archive while the sources are the
//! same, and then needs no device compiler.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::cache::{self, MAKERS};
use crate::{Error, Output};

/// The file's name in the archive's folder.
const FILE: &str = "sources";

/// The origin of an archive's modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// The version of the compiler.
    pub compiler: String,
    /// The source files and manifests.
    pub inputs: BTreeSet<PathBuf>,
    digest: u64,
}

impl Sources {
    /// A number that other sources change.
    pub fn number(&self) -> u64 {
        self.digest
    }

    /// Writes the origin of `output`, the modules of a workspace's `package`, into the archive's `folder`.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if a source cannot be read, or the file cannot be written.
    pub fn write(
        folder: &Path,
        (workspace, package): (&Path, &str),
        compiler: &str,
        output: &Output,
    ) -> Result<(), Error> {
        let inputs: BTreeSet<_> = output.inputs.iter().cloned().collect();
        let digest = digest(workspace, package, &inputs).map_err(Error::io("read", workspace))?;
        let relative =
            |path: &PathBuf| format!("{}\n", path.strip_prefix(workspace).unwrap_or(path).display());
        let inputs: String = inputs.iter().map(relative).collect();
        let file = folder.join(FILE);
        fs::write(&file, format!("{compiler}\n{digest:016x}\n{inputs}")).map_err(Error::io("write", &file))
    }

    /// The origin of the archive in `folder`. Returns `None` if there is none, or if a source of the package
    /// has changed since.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the file is malformed.
    pub fn of(folder: &Path, workspace: &Path, package: &str) -> Result<Option<Self>, Error> {
        let file = folder.join(FILE);
        let Ok(text) = fs::read_to_string(&file) else { return Ok(None) };
        let mut lines = text.lines();
        let (Some(compiler), Some(then)) = (lines.next(), lines.next()) else {
            return Err(Error::io("read", &file)(io::Error::other("it has no compiler and no digest")));
        };
        let inputs: BTreeSet<_> = lines.map(|line| workspace.join(line)).collect();
        // A source that is gone is a change, too.
        let digest = digest(workspace, package, &inputs).ok();
        let digest = digest.filter(|now| format!("{now:016x}") == then);
        Ok(digest.map(|digest| Self { compiler: compiler.to_owned(), inputs, digest }))
    }
}

/// A digest of the sources, and of the code that turns compiler output into modules.
fn digest(workspace: &Path, package: &str, inputs: &BTreeSet<PathBuf>) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    (MAKERS, cache::state(workspace, package, inputs)?).hash(&mut hasher);
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_source_ends_the_use_of_an_archive() {
        let workspace = std::env::temp_dir().join(format!("cuda-builder-sources-{}", std::process::id()));
        let (folder, source) = (workspace.join("ptx"), workspace.join("lib.rs"));
        fs::create_dir_all(&folder).expect("made");
        fs::write(&source, "fn one() {}").expect("written");
        let output = Output { modules: vec![], inputs: vec![source.clone()], warnings: String::new() };
        assert_eq!(Sources::of(&folder, &workspace, "kernels").expect("no file"), None);
        Sources::write(&folder, (&workspace, "kernels"), "rustc 1", &output).expect("written");
        let known = || Sources::of(&folder, &workspace, "kernels").expect("a file");
        let right = known().expect("unchanged");
        assert_eq!((&*right.compiler, &right.inputs), ("rustc 1", &[source.clone()].into()));
        fs::write(&source, "fn two() {}").expect("written");
        assert_eq!(known(), None);
        fs::write(&source, "fn one() {}").expect("written");
        assert_eq!(known(), Some(right));
        fs::remove_file(&source).expect("removed");
        assert_eq!(known(), None);
        fs::write(folder.join(FILE), "").expect("written");
        assert!(Sources::of(&folder, &workspace, "kernels").is_err());
        fs::remove_dir_all(&workspace).expect("removed");
    }
}
