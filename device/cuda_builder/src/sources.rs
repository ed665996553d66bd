//! The sources of an [`Archive`](crate::archive::Archive) that a checkout carries. A file beside the archive
//! names every source, and has a digest of their content. A build uses the archive while the sources are the
//! same, and then needs no device compiler.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::cache::{self, MAKERS};
use crate::toolchain::workspace_root;
use crate::{Error, cargo};

/// The file's name in the archive's folder. Its lines: the compiler's version, the recipe, the digest, and
/// the inputs.
const FILE: &str = "sources";

/// The origin of an archive's modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// The version of the compiler.
    pub compiler: String,
    /// The source files and manifests.
    pub inputs: BTreeSet<PathBuf>,
    /// A digest of the compiler and of the builder's settings.
    pub(crate) recipe: String,
    /// A digest of the inputs' content, and of the code that turns compiler output into modules.
    digest: u64,
}

impl Sources {
    /// A number that other sources change.
    pub fn number(&self) -> u64 {
        self.digest
    }

    /// Writes the origin of modules of the crate in `crate_root` into the archive's `folder`.
    pub(crate) fn write(
        folder: &Path,
        crate_root: &Path,
        [compiler, recipe]: [&str; 2],
        inputs: &[PathBuf],
    ) -> Result<(), Error> {
        let (workspace, inputs) = (workspace_root(crate_root), inputs.iter().cloned().collect());
        let digest = digest(crate_root, &inputs)?;
        let relative =
            |path: &PathBuf| format!("{}\n", path.strip_prefix(&workspace).unwrap_or(path).display());
        let inputs: String = inputs.iter().map(relative).collect();
        let file = folder.join(FILE);
        let text = format!("{compiler}\n{recipe}\n{digest:016x}\n{inputs}");
        fs::write(&file, text).map_err(Error::io("write", &file))
    }

    /// The origin of the archive in `folder`, which has modules of the crate in `crate_root`. Returns `None`
    /// if there is none, or if a source has changed since.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the file is malformed, or if there is no such crate.
    pub fn of(folder: &Path, crate_root: &Path) -> Result<Option<Self>, Error> {
        let file = folder.join(FILE);
        let Ok(text) = fs::read_to_string(&file) else { return Ok(None) };
        let crate_root = crate_root.canonicalize().map_err(Error::io("open", crate_root))?;
        let mut lines = text.lines().map(str::to_owned);
        let [Some(compiler), Some(recipe), Some(then)] = [(); 3].map(|()| lines.next()) else {
            return Err(Error::io("read", &file)(io::Error::other("it has no compiler, recipe and digest")));
        };
        let workspace = workspace_root(&crate_root);
        let inputs: BTreeSet<_> = lines.map(|line| workspace.join(line)).collect();
        // A source that is gone is a change, too.
        let digest = digest(&crate_root, &inputs).ok().filter(|now| format!("{now:016x}") == then);
        Ok(digest.map(|digest| Self { compiler, inputs, recipe, digest }))
    }
}

fn digest(crate_root: &Path, inputs: &BTreeSet<PathBuf>) -> Result<u64, Error> {
    let (workspace, package) = (workspace_root(crate_root), cargo::package_name(crate_root)?);
    let state = cache::state(&workspace, &package, inputs).map_err(Error::io("read", &workspace))?;
    let mut hasher = DefaultHasher::new();
    (MAKERS, state).hash(&mut hasher);
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_source_ends_the_use_of_an_archive() {
        let root = std::env::temp_dir().join(format!("cuda-builder-sources-{}", std::process::id()));
        let (folder, source) = (root.join("ptx"), root.join("lib.rs"));
        fs::create_dir_all(&folder).expect("made");
        let root = root.canonicalize().expect("made");
        fs::write(&source, "fn one() {}").expect("written");
        fs::write(root.join("Cargo.toml"), "[workspace]\n[package]\nname = \"kernels\"\n").expect("written");
        assert_eq!(Sources::of(&folder, &root).expect("no file"), None);
        let inputs = [root.join("lib.rs")];
        Sources::write(&folder, &root, ["rustc 1", "fast"], &inputs).expect("written");
        let known = || Sources::of(&folder, &root).expect("a file");
        let right = known().expect("unchanged");
        assert_eq!([&*right.compiler, &right.recipe], ["rustc 1", "fast"]);
        assert_eq!(right.inputs, inputs.into());
        fs::write(&source, "fn two() {}").expect("written");
        assert_eq!(known(), None);
        fs::write(&source, "fn one() {}").expect("written");
        assert_eq!(known(), Some(right));
        fs::remove_file(&source).expect("removed");
        assert_eq!(known(), None);
        fs::write(folder.join(FILE), "").expect("written");
        assert!(Sources::of(&folder, &root).is_err());
        fs::remove_dir_all(&root).expect("removed");
    }
}
