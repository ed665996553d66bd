//! A workspace with one crate of a checkout alone. Cargo resolves the dependencies of every member of a
//! workspace, and of their tests. A checkout has programs whose dependencies a vendored or offline build of
//! another program lacks.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::{Error, cache, manifest, outer};

/// Writes the workspace of the crate in `crate_root` to `folder`: a manifest, and links to the crate's files.
/// `workspace` is the checkout's root, and `library` has the sources of `core`. Returns the manifest.
pub(crate) fn write(
    folder: &Path,
    workspace: &Path,
    crate_root: &Path,
    library: &Path,
) -> Result<PathBuf, Error> {
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let read = |root: &Path| {
        let file = root.join("Cargo.toml");
        fs::read_to_string(&file).map_err(Error::io("read", file))
    };
    let text = manifest::alone((&read(workspace)?, workspace), (&read(crate_root)?, crate_root));
    let manifest = folder.join("Cargo.toml");
    cache::write(&manifest, &text)?;
    links(crate_root, folder).map_err(Error::io("link", folder))?;
    locked(&manifest, workspace, library)?;
    Ok(manifest)
}

/// The packages of the registry that the crate with this manifest and the standard library need, after
/// [`write`]; `None` if the standard library's packages do not lie beside its sources.
///
/// Cargo resolves the whole standard library before it compiles `core`. A program's vendored packages, or the
/// packages at hand without a network, need not have those of the standard library.
pub(crate) fn packages(manifest: &Path) -> Option<PathBuf> {
    Some(manifest.with_file_name("vendor")).filter(|folder| folder.is_dir())
}

/// Fills the folder of [`packages`], from wherever the outer program's cargo has its packages.
fn vendor(manifest: &Path, library: &Path) -> Result<(), Error> {
    let (folder, theirs) = (manifest.with_file_name("vendor"), library.join("vendor"));
    let _ = fs::remove_dir_all(&folder);
    let Ok(packages) = fs::read_dir(&theirs) else { return Ok(()) };
    let mut cargo = outer::cargo();
    cargo
        .args(["vendor", "--quiet", "--respect-source-config", "--manifest-path"])
        .arg(manifest)
        .arg(&folder);
    cargo.args(outer::is_offline().then_some("--offline")).current_dir(outer::folder(manifest));
    cargo.output().map_err(Error::io("run", "cargo"))?;
    if !folder.is_dir() {
        return Ok(()); // the crate needs no package, or cargo's own error follows
    }
    for package in packages {
        let package = package.map_err(Error::io("read", &theirs))?;
        let mut name = std::ffi::OsString::from("std-");
        name.push(package.file_name());
        link(&package.path(), &folder.join(name)).map_err(Error::io("link", &folder))?;
    }
    Ok(())
}

/// Writes the lock file beside `manifest`: with the checkout's versions, or, offline, with the versions at
/// hand, which are those of the outer program's lock file. Cargo drops the packages that the crate does not
/// need here, once, before several compilers read the file.
fn locked(manifest: &Path, workspace: &Path, library: &Path) -> Result<(), Error> {
    let (lock, source) = (manifest.with_file_name("Cargo.lock"), manifest.with_file_name("locked"));
    let theirs = fs::read_to_string(workspace.join("Cargo.lock")).unwrap_or_default();
    let text = if outer::is_offline() { String::new() } else { theirs };
    if !text.is_empty() && lock.is_file() && fs::read_to_string(&source).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let _ = fs::remove_file(&lock);
    if !text.is_empty() {
        cache::write(&lock, &text)?;
    }
    // If this fails, the compilers fail too, and their error says why.
    let mut cargo = outer::cargo();
    cargo.args(["metadata", "--quiet", "--format-version=1", "--manifest-path"]).arg(manifest);
    cargo.args(outer::is_offline().then_some("--offline")).current_dir(outer::folder(manifest));
    cargo.output().map_err(Error::io("run", "cargo"))?;
    vendor(manifest, library)?;
    cache::write(&source, &text)
}

/// Links every file and folder of the crate into `folder`, except for its manifest and for other packages.
fn links(crate_root: &Path, folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(crate_root)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let is_other = name == "Cargo.toml" || name == "Cargo.lock" || name == "target";
        let link = folder.join(&name);
        if is_other || path.join("Cargo.toml").exists() || fs::read_link(&link).is_ok_and(|to| to == path) {
            continue;
        }
        let _ = fs::remove_file(&link);
        self::link(&path, &link)?;
    }
    Ok(())
}

#[cfg(unix)]
fn link(to: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(not(unix))]
fn link(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::toolchain::DeviceCompiler;

    #[test]
    fn the_packages_of_the_crate_and_of_the_standard_library_are_at_hand() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let library = DeviceCompiler::locate(workspace).unwrap().library_source;
        let folder = std::env::temp_dir().join(format!("ferroflash-alone-{}", std::process::id()));
        let manifest = write(&folder, workspace, &workspace.join("kernels-gpu"), &library).unwrap();
        let names = |folder: &Path| -> Vec<String> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let theirs = names(&library.join("vendor"));
        assert_eq!(packages(&manifest).is_some(), !theirs.is_empty(), "all or none");
        let found = packages(&manifest).map_or_else(Vec::new, |folder| names(&folder));
        assert!(theirs.iter().all(|name| found.contains(&format!("std-{name}"))), "{found:?}");
        assert!(found.is_empty() || found.iter().any(|name| name.starts_with("pastey")), "{found:?}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
