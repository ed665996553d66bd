//! The origin of an [`Archive`](crate::archive::Archive) that a checkout carries. A file beside the archive
//! has digests of every source, of the code that makes and reads modules, and of the archive itself. A build
//! uses the archive while all of them are right, and then needs no device compiler.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use compression::{lzma, numbers};

use crate::cache::{self, MAKERS, digest};
use crate::toolchain::workspace_root;
use crate::{Error, archive, cargo};

/// The file's name in the archive's folder. Its lines: the compiler's version; digests of the builder's
/// settings, of the code and of the archive; and each source behind its digest.
const FILE: &str = "sources";

/// The code of this crate that does not change a cached module, but changes which modules are made, or how
/// an archive stores them.
const FORMERS: [&str; 6] = [
    include_str!("alone.rs"),
    include_str!("arch.rs"),
    include_str!("group.rs"),
    include_str!("lines.rs"),
    lzma::SOURCE,
    numbers::SOURCE,
];

/// What an archive's folder has for a crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carried {
    /// No archive.
    Nothing,
    /// Modules of other sources. The text names a source that has changed or is gone.
    Stale(String),
    /// The modules of the crate's sources.
    Current(Sources),
}

/// The origin of an archive's modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// The version of the compiler.
    pub compiler: String,
    /// The source files and manifests.
    pub inputs: BTreeSet<PathBuf>,
    /// A digest of the builder's settings.
    pub(crate) settings: String,
    /// A digest of the archive.
    archive: u64,
}

impl Sources {
    /// A number that other modules change.
    pub fn number(&self) -> u64 {
        self.archive
    }

    /// Writes the origin of modules of the crate in `crate_root` into the archive's `folder`.
    pub(crate) fn write(
        folder: &Path,
        crate_root: &Path,
        [compiler, settings]: [&str; 2],
        inputs: &[PathBuf],
    ) -> Result<(), Error> {
        let (workspace, package) = (workspace_root(crate_root), cargo::package_name(crate_root)?);
        let line = |path: &PathBuf| {
            let content = cache::content(&workspace, &package, path).map_err(Error::io("read", path))?;
            let path = path.strip_prefix(&workspace).unwrap_or(path);
            Ok(format!("{:016x} {}\n", digest(&content), path.display()))
        };
        let lines = inputs.iter().map(line).collect::<Result<String, Error>>()?;
        let (code, archive) = (of_code(), of_archive(folder)?);
        let text = format!("{compiler}\n{settings}\n{code:016x}\n{archive:016x}\n{lines}");
        let file = folder.join(FILE);
        fs::write(&file, text).map_err(Error::io("write", &file))
    }

    /// What the archive in `folder` has for the crate in `crate_root`.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the archive is damaged, or if there is no such crate.
    pub fn of(folder: &Path, crate_root: &Path) -> Result<Carried, Error> {
        let file = folder.join(FILE);
        let damaged = || {
            let remedy =
                "it is damaged; restore the folder from git, or remove the folder to compile the kernels";
            Error::io("read", &file)(io::Error::new(io::ErrorKind::InvalidData, remedy))
        };
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Carried::Nothing),
            text => text.map_err(|_| damaged())?,
        };
        let crate_root = crate_root.canonicalize().map_err(Error::io("open", crate_root))?;
        let (workspace, package) = (workspace_root(&crate_root), cargo::package_name(&crate_root)?);
        let mut lines = text.lines();
        let mut header = || lines.next().ok_or_else(damaged);
        let [compiler, settings, code, archive] = [header()?, header()?, header()?, header()?];
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| damaged());
        if number(code)? != of_code() {
            return Ok(Carried::Stale("cuda_builder".to_owned()));
        }
        let mut inputs = BTreeSet::new();
        for line in lines {
            let (then, path) = line.split_once(' ').ok_or_else(damaged)?;
            let input = workspace.join(path);
            // A source that is gone is a change, too.
            let now = cache::content(&workspace, &package, &input).map(|content| digest(&content));
            if now.ok() != Some(number(then)?) {
                return Ok(Carried::Stale(path.to_owned()));
            }
            inputs.insert(input);
        }
        let archive = number(archive)?;
        if of_archive(folder).ok() != Some(archive) {
            return Err(damaged());
        }
        let [compiler, settings] = [compiler, settings].map(str::to_owned);
        Ok(Carried::Current(Self { compiler, inputs, settings, archive }))
    }
}

/// A digest of the code that makes modules, and reads them from an archive.
fn of_code() -> u64 {
    digest([MAKERS.concat(), FORMERS.concat()].concat().as_bytes())
}

/// A digest of the archive's files.
fn of_archive(folder: &Path) -> Result<u64, Error> {
    let read = |file: PathBuf| fs::read(&file).map_err(Error::io("read", &file));
    let contents = archive::files(folder)?.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(digest(&contents.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Archive;

    #[test]
    fn a_changed_source_or_archive_ends_the_use_of_an_archive() {
        let root = std::env::temp_dir().join(format!("cuda-builder-sources-{}", std::process::id()));
        let (folder, source) = (root.join("ptx"), root.join("lib.rs"));
        fs::create_dir_all(&root).expect("made");
        let root = root.canonicalize().expect("made");
        fs::write(&source, "fn one() {}").expect("written");
        fs::write(root.join("Cargo.toml"), "[workspace]\n[package]\nname = \"kernels\"\n").expect("written");
        let known = || Sources::of(&folder, &root);
        assert_eq!(known().expect("no file"), Carried::Nothing);
        let modules = [("one", "add".to_owned()), ("two", "mul".to_owned())];
        Archive::write_modules(&modules, |name| name, &root.join("kept"), &folder).expect("written");
        let inputs = [root.join("lib.rs")];
        Sources::write(&folder, &root, ["rustc 1", "fast"], &inputs).expect("written");
        let right = known().expect("whole");
        let Carried::Current(sources) = &right else { panic!("{right:?}") };
        assert_eq!([&*sources.compiler, &sources.settings], ["rustc 1", "fast"]);
        assert_eq!(sources.inputs, inputs.into());
        let stale = Carried::Stale("lib.rs".to_owned());
        fs::write(&source, "fn two() {}").expect("written");
        assert_eq!(known().expect("whole"), stale);
        fs::remove_file(&source).expect("removed");
        assert_eq!(known().expect("whole"), stale);
        fs::write(&source, "fn one() {}").expect("written");
        assert_eq!(known().expect("whole"), right);
        for name in ["code-0.lzma", "lines-1.lzma", "code.index", FILE] {
            let file = folder.join(name);
            let whole = fs::read(&file).expect("written");
            for damaged in [&whole[..whole.len() / 2], &[], &[0xff; 40]] {
                fs::write(&file, damaged).expect("written");
                let error = known().expect_err("damaged").to_string();
                assert!(error.contains("restore the folder from git"), "{name}: {error}");
            }
            fs::write(&file, whole).expect("written");
        }
        fs::remove_file(folder.join("code-1.lzma")).expect("removed");
        assert!(known().is_err());
        fs::remove_dir_all(&root).expect("removed");
    }
}
