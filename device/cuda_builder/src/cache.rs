//! A cache of modules. The key of a module is the content of the sources, of the compiler, and of the code
//! that splits modules. The first line of each file has a digest of the rest, so a damaged file is not used.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io, process};

use crate::{Error, manifest};

/// The source code that turns compiler output into modules. If this code changes, modules cached by the old
/// code are not used.
pub(crate) const MAKERS: [&str; 5] = [
    include_str!("cargo.rs"),
    include_str!("convergence.rs"),
    include_str!("module.rs"),
    include_str!("scan.rs"),
    include_str!("stamp.rs"),
];

/// Number of states of the sources, and of recipes, that the cache keeps.
const STATES: usize = 2;
const RECIPES: usize = 4;

/// The cached modules of one recipe: one crate, target, compiler and set of flags.
pub(crate) struct Cache<'a> {
    folder: PathBuf,
    /// The cache stores paths below this folder relative to the folder. A copy of the folder then refers to
    /// its own copies of the sources.
    workspace: &'a Path,
    /// The name of the crate's package.
    package: &'a str,
}

/// The cached modules of one state of the sources.
pub(crate) struct State {
    folder: PathBuf,
    pub inputs: BTreeSet<PathBuf>,
}

/// A compiler's output for one state of the sources.
pub(crate) struct Made<'m> {
    /// For each module: symbol, directives, text.
    pub modules: &'m [(&'m str, &'m str, &'m str)],
    /// Kernels of the crate that no entry names.
    pub others: &'m BTreeSet<String>,
    pub warnings: &'m str,
}

impl<'a> Cache<'a> {
    pub(crate) fn open(folder: &Path, workspace: &'a Path, package: &'a str, recipe: impl Hash) -> Self {
        Cache { folder: folder.join(hex((MAKERS, recipe))), workspace, package }
    }

    /// The current state of the sources that the cache knows; `None` before the first build, or if a source
    /// is missing.
    pub(crate) fn current(&self) -> Option<State> {
        let inputs = opened(&self.folder.join("inputs"))?;
        let state = self.state(inputs.lines().map(|line| self.workspace.join(line)).collect()).ok()?;
        ["others", "warnings"].iter().all(|name| opened(&state.folder.join(name)).is_some()).then_some(state)
    }

    /// Caches the output of compilers that read `inputs` and began at `started`. If an input has changed
    /// since then, this function caches nothing.
    pub(crate) fn keep(
        &self,
        inputs: &BTreeSet<PathBuf>,
        started: SystemTime,
        made: &Made<'_>,
    ) -> Result<(), Error> {
        if changed_since(started, inputs)?.is_some() {
            return Ok(());
        }
        let state = self.state(inputs.clone()).map_err(Error::io("read", &self.folder))?;
        fs::create_dir_all(&state.folder).map_err(Error::io("create", &state.folder))?;
        for (symbol, directives, text) in made.modules {
            write(&state.file(symbol, directives), &sealed(text))?;
        }
        let lines =
            |items: &mut dyn Iterator<Item = String>| items.map(|item| item + "\n").collect::<String>();
        write(&state.folder.join("others"), &sealed(&lines(&mut made.others.iter().cloned())))?;
        write(&state.folder.join("warnings"), &sealed(made.warnings))?;
        let relative =
            |path: &PathBuf| path.strip_prefix(self.workspace).unwrap_or(path).display().to_string();
        write(&self.folder.join("inputs"), &sealed(&lines(&mut inputs.iter().map(relative))))?;
        prune(&self.folder, STATES)?;
        prune(self.folder.parent().unwrap_or(&self.folder), RECIPES)
    }

    fn state(&self, inputs: BTreeSet<PathBuf>) -> io::Result<State> {
        let folder = self.folder.join(state(self.workspace, self.package, &inputs)?);
        Ok(State { folder, inputs })
    }
}

/// A digest of the `inputs` from which the modules of a workspace's `package` are made.
pub(crate) fn state(workspace: &Path, package: &str, inputs: &BTreeSet<PathBuf>) -> io::Result<String> {
    let mut hasher = DefaultHasher::new();
    for input in inputs {
        let content = content(workspace, package, input)?;
        (input.strip_prefix(workspace).unwrap_or(input), content).hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// An input that has changed since `started`, if there is one.
pub(crate) fn changed_since<'p>(
    started: SystemTime,
    inputs: impl IntoIterator<Item = &'p PathBuf>,
) -> Result<Option<&'p PathBuf>, Error> {
    for input in inputs {
        let time =
            fs::metadata(input).and_then(|about| about.modified()).map_err(Error::io("read", input))?;
        if time >= started {
            return Ok(Some(input));
        }
    }
    Ok(None)
}

/// The part of an input that can change modules.
pub(crate) fn content(workspace: &Path, package: &str, input: &Path) -> io::Result<Vec<u8>> {
    let content = fs::read(input)?;
    let of_workspace = |name| *input == workspace.join(name);
    Ok(match std::str::from_utf8(&content) {
        Ok(text) if of_workspace("Cargo.lock") => manifest::locked(text, package).into_bytes(),
        Ok(text) if of_workspace("Cargo.toml") => manifest::workspace(text).into_bytes(),
        _ => content,
    })
}

impl State {
    /// The module of `symbol` with `directives`, if it is whole in the cache.
    pub(crate) fn module(&self, symbol: &str, directives: &str) -> Option<String> {
        opened(&self.file(symbol, directives))
    }

    /// The kernels of the crate that no entry names.
    pub(crate) fn others(&self) -> BTreeSet<String> {
        let text = opened(&self.folder.join("others")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// rustc's warnings.
    pub(crate) fn warnings(&self) -> String {
        opened(&self.folder.join("warnings")).unwrap_or_default()
    }

    fn file(&self, symbol: &str, directives: &str) -> PathBuf {
        self.folder.join(format!("{symbol}-{}.ptx", hex(directives)))
    }
}

/// Number of bytes of a [`seal`].
const SEAL: usize = "// 0123456789abcdef 0123456789abcdef\n".len();

/// The line before a text in a file: a comment with the text's digest and number of bytes.
fn seal(text: &str) -> String {
    format!("// {:016x} {:016x}\n", digest(text.as_bytes()), text.len())
}

/// A text behind its seal.
fn sealed(text: &str) -> String {
    seal(text) + text
}

/// The text that [`sealed`] has sealed; `None` if the file is missing or damaged.
fn opened(path: &Path) -> Option<String> {
    let mut file = fs::read_to_string(path).ok()?;
    let is_right = file.starts_with(&seal(file.get(SEAL..)?));
    is_right.then(|| file.split_off(SEAL))
}

/// A digest that any changed word changes, the same on every machine. A build script is not optimised, and
/// the standard library's hash would take seconds for a hundred megabytes there.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let add = |digest: u64, word: u64| (digest.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    let digest = words.iter().fold(1, |digest, word| add(digest, u64::from_le_bytes(*word)));
    rest.iter().fold(digest, |digest, byte| add(digest, u64::from(*byte)))
}

/// Writes `text` to `path`, unless the file already has this text: an unchanged file keeps its modification
/// time, so its dependents stay fresh. A concurrent reader sees the old text or the new one.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    let part = path.with_extension(format!("{}.part", process::id()));
    fs::write(&part, text).map_err(Error::io("write", &part))?;
    fs::rename(&part, path).map_err(Error::io("write", path))
}

/// Removes all folders in `folder`, except for the `keep` newest ones.
fn prune(folder: &Path, keep: usize) -> Result<(), Error> {
    let listed = || -> io::Result<Vec<(SystemTime, PathBuf)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        Ok(found)
    };
    let mut folders = listed().map_err(Error::io("list", folder))?;
    folders.sort();
    let old = folders.len().saturating_sub(keep);
    folders.iter().take(old).try_for_each(|(_, old)| match fs::remove_dir_all(old) {
        // Another process has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(Error::io("remove", old)),
    })
}

/// The hash of a key, as a name of a file or folder.
pub(crate) fn hex(key: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_not_used() {
        let file = std::env::temp_dir().join(format!("ferroflash-sealed-{}", process::id()));
        let whole = sealed(".version 8.0\n.entry one\n");
        write(&file, &whole).unwrap();
        assert_eq!(opened(&file).as_deref(), Some(".version 8.0\n.entry one\n"));
        let edited = whole.replace("one", "two");
        for damaged in ["", "\n", "// 0123", &whole[..whole.len() - 1], &edited, ".version 8.0\n.entry one\n"]
        {
            fs::write(&file, damaged).unwrap();
            assert_eq!(opened(&file), None, "{damaged}");
        }
        write(&file, &whole).unwrap();
        assert!(opened(&file).is_some(), "it is made anew");
        fs::remove_file(&file).unwrap();
    }
}
