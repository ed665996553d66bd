//! The working folders of compilers. Builds of different crates use the same folders, so that they find
//! `core` and other dependencies compiled.

use std::path::{Path, PathBuf};
use std::{fs, io, thread};

use crate::Error;

/// A folder in which one compiler works at a time.
pub(crate) struct Workplace {
    pub folder: PathBuf,
    /// The lock, which is held until this file is closed.
    lock: fs::File,
}

impl Workplace {
    /// Takes one of the `count` working folders in `compilers`: number `n`, or, if it is in use, another
    /// folder that is free. If no folder is free, waits for number `n`.
    pub(crate) fn take(compilers: &Path, n: usize, count: usize) -> Result<Self, Error> {
        for n in (0..count).map(|next| (n + next) % count) {
            if let Some(place) = Self::open(compilers, n)?.if_free() {
                return Ok(place);
            }
        }
        let place = Self::open(compilers, n)?;
        place.lock.lock().map_err(Error::io("lock", &place.folder))?;
        Ok(place)
    }

    /// Fills the new folders among the first `count` folders in `compilers`, except the first, with copies of
    /// the first. Before that, `check` compiles the dependencies of a crate in the first folder.
    ///
    /// `core` alone takes half a minute, and two compilers with empty folders would take twice as much
    /// processor time. A folder that another build uses stays as it is. If a copy fails, its folder stays
    /// new, and cargo fills it.
    ///
    /// # Errors
    /// Returns the error of `check`, so that no other compiler meets the same error.
    pub(crate) fn fill(
        compilers: &Path,
        count: usize,
        check: impl Fn(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let others = (1..count).map(|n| Self::open(compilers, n)).collect::<Result<Vec<_>, _>>()?;
        let others: Vec<_> = others.into_iter().filter(Self::is_new).filter_map(Self::if_free).collect();
        if others.is_empty() {
            return Ok(());
        }
        let Some(first) = Self::open(compilers, 0)?.if_free() else { return Ok(()) };
        // An interrupted build may have left a part of the dependencies, and a compiler that still writes.
        // Cargo compiles the rest, and waits for that compiler.
        check(&first.folder)?;
        for place in others.iter().filter(|place| place.is_new()) {
            // An interrupted copy keeps this name, so the next build does not mistake it for a whole folder.
            let part = place.folder.with_extension("part");
            let _ = fs::remove_dir_all(&part);
            if copy(&first.folder, &part).and_then(|()| fs::rename(&part, &place.folder)).is_err() {
                let _ = fs::remove_dir_all(&part);
            }
        }
        Ok(())
    }

    fn open(compilers: &Path, n: usize) -> Result<Self, Error> {
        fs::create_dir_all(compilers).map_err(Error::io("create", compilers))?;
        let folder = compilers.join(format!("shard-{n}"));
        let lock = folder.with_extension("lock");
        let lock = fs::File::create(&lock).map_err(Error::io("create", &lock))?;
        Ok(Self { folder, lock })
    }

    /// This folder with its lock, if no other build holds the lock.
    fn if_free(self) -> Option<Self> {
        self.lock.try_lock().is_ok().then_some(self)
    }

    /// Whether no compiler has worked in this folder.
    fn is_new(&self) -> bool {
        !self.folder.exists()
    }
}

/// Copies a folder without its links. Cargo compares modification times, so each copy keeps the time of its
/// original.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (original, copied) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&original, &copied)?;
        } else if kind.is_file() {
            fs::copy(&original, &copied)?;
            // A copy of a file that is read-only can be opened for reading only.
            fs::File::open(&copied)?.set_modified(entry.metadata()?.modified()?)?;
        }
    }
    Ok(())
}

/// The number of compilers that run at the same time.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_first_folder_is_compiled_and_the_others_are_copies() {
        let compilers = std::env::temp_dir().join(format!("ferroflash-workplaces-{}", std::process::id()));
        let compiled = Cell::new(0);
        let compile = |folder: &Path| {
            compiled.set(compiled.get() + 1);
            fs::create_dir_all(folder.join("deps")).unwrap();
            let core = folder.join("deps/core");
            if !core.exists() {
                fs::write(&core, "core").unwrap();
                let mut read_only = fs::metadata(&core).unwrap().permissions();
                read_only.set_readonly(true);
                fs::set_permissions(&core, read_only).unwrap();
            }
            Ok(())
        };
        let modified = |n: usize| {
            fs::metadata(compilers.join(format!("shard-{n}/deps/core"))).and_then(|file| file.modified()).ok()
        };
        // One compiler fills its folder itself.
        Workplace::fill(&compilers, 1, compile).unwrap();
        assert_eq!(compiled.get(), 0);
        // The other build's folder stays as it is.
        let used = Workplace::take(&compilers, 2, 3).unwrap();
        Workplace::fill(&compilers, 3, compile).unwrap();
        assert_eq!(compiled.get(), 1);
        assert!(modified(0).is_some() && modified(1) == modified(0) && modified(2).is_none());
        drop(used);
        // The rest of an interrupted copy is not used.
        fs::create_dir_all(compilers.join("shard-2.part/deps")).unwrap();
        fs::write(compilers.join("shard-2.part/deps/torn"), "co").unwrap();
        Workplace::fill(&compilers, 3, compile).unwrap();
        assert_eq!((compiled.get(), modified(2)), (2, modified(0)));
        assert!(!compilers.join("shard-2/deps/torn").exists());
        Workplace::fill(&compilers, 3, compile).unwrap();
        assert_eq!(compiled.get(), 2, "no folder is new");
        // The output of a failed compiler is not copied.
        fs::remove_dir_all(&compilers).unwrap();
        let fail = |folder: &Path| {
            compile(folder)?;
            Err(Error::MissingEntry { symbol: "one".into() })
        };
        assert!(matches!(Workplace::fill(&compilers, 2, fail), Err(Error::MissingEntry { .. })));
        assert!(modified(0).is_some());
        assert!(!compilers.join("shard-1").exists());
        fs::remove_dir_all(&compilers).unwrap();
    }
}
