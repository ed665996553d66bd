//! The folders and the compiler of a build.

use std::path::{Component, Path, PathBuf};
use std::{env, fs, path};

use crate::toolchain::{DeviceCompiler, is_checkout, workspace_root, workspaces};
use crate::{Error, alone, cache, cargo};

/// The folders and the compiler of a build.
pub(crate) struct Site {
    pub crate_root: PathBuf,
    pub workspace: PathBuf,
    pub compiler: DeviceCompiler,
    pub package: String,
    /// The build folder.
    #[cfg(feature = "ptxas")]
    pub kept: PathBuf,
    /// The cache folder of the package.
    pub folder: PathBuf,
    /// The working folders of the compilers.
    pub compilers: PathBuf,
    /// The folder for a workspace with the crate alone, if a build script compiles a member of a checkout's
    /// workspace.
    alone: Option<PathBuf>,
}

impl Site {
    /// Locks the cache folder until the file is dropped.
    pub(crate) fn locked(&self) -> Result<fs::File, Error> {
        let lock = self.folder.join("lock");
        let locked = || {
            fs::create_dir_all(&self.folder)?;
            fs::File::create(&lock).and_then(|file| file.lock().map(|()| file))
        };
        locked().map_err(Error::io("lock", &lock))
    }

    /// The site of the crate in `crate_root`. `target_dir` is the build folder, if the caller has named one.
    pub(crate) fn find(crate_root: &Path, target_dir: Option<&Path>) -> Result<Self, Error> {
        let crate_root = crate_root.canonicalize().map_err(Error::io("open", crate_root))?;
        let workspace = workspace_root(&crate_root);
        let compiler = DeviceCompiler::locate(&workspace)?;
        let package = cargo::package_name(&crate_root)?;
        let variable = |name| env::var_os(name).map(PathBuf::from);
        let kept = match (target_dir, variable("CARGO_TARGET_DIR")) {
            (Some(named), _) => absolute(named)?,
            (None, Some(named)) => of_cargo(&named, variable("OUT_DIR").as_deref())?.join("cuda-builder"),
            (None, None) => workspace.join("target/cuda-builder"),
        };
        let own = workspaces(&crate_root).next().unwrap_or(&crate_root).to_owned();
        let folder = kept.join(&package);
        let is_member = cfg!(unix) && own != crate_root && is_checkout(&own);
        // A task or test of the checkout compiles in the checkout's own workspace: only there do the source
        // lines of inlined calls name whole paths. Another program's build may lack what that workspace
        // needs.
        let is_script = env::var_os("OUT_DIR").is_some();
        let alone = (is_member && is_script).then(|| folder.join("alone").join(cache::hex(&crate_root)));
        // Cargo identifies `core` by the path of its sources, which is relative in a workspace that contains
        // them. With one folder for both paths, `core` would be compiled again whenever the path changes.
        let is_relative = compiler.library_source.starts_with(alone.as_ref().unwrap_or(&own));
        let compilers = if is_relative { "compilers-in-workspace" } else { "compilers" };
        let compilers = kept.join(compilers);
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        Ok(Self {
            crate_root,
            workspace,
            compiler,
            package,
            #[cfg(feature = "ptxas")]
            kept,
            folder,
            compilers,
            alone,
        })
    }

    /// Writes the workspace with the crate alone, if the crate needs one, and returns its manifest.
    pub(crate) fn alone(&self) -> Result<Option<PathBuf>, Error> {
        let write = |folder: &PathBuf| {
            alone::write(folder, &self.workspace, &self.crate_root, &self.compiler.library_source)
        };
        self.alone.as_ref().map(write).transpose()
    }
}

fn absolute(folder: &Path) -> Result<PathBuf, Error> {
    path::absolute(folder).map_err(Error::io("find", folder))
}

/// Cargo's build folder, which a user has `named`. A relative name counts from the folder in which cargo
/// runs. A build script runs elsewhere, but its output folder `out` is `PROFILE/build/PACKAGE/out` below
/// cargo's build folder, or below a folder of the target in it.
fn of_cargo(named: &Path, out: Option<&Path>) -> Result<PathBuf, Error> {
    let names: PathBuf = named.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let above = out.into_iter().flat_map(|out| out.ancestors().skip(4));
    let holds = above.filter(|_| named.is_relative()).find(|folder| folder.ends_with(&names));
    holds.map_or_else(|| absolute(named), |folder| Ok(folder.to_owned()))
}

/// Writes a module into the first of `folders` that is writable, and returns its path. The files of a
/// checkout may be readable only.
pub(crate) fn write_module(folders: &[PathBuf], symbol: &str, text: &str) -> Result<PathBuf, Error> {
    let write = |folder: &PathBuf| {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let path = folder.join(format!("{symbol}.ptx"));
        cache::write(&path, text).map(|()| path)
    };
    let (first, others) = folders.split_first().expect("the caller names a folder");
    others.iter().fold(write(first), |written, folder| written.or_else(|_| write(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_build_folder_is_the_one_in_which_cargo_runs() {
        let of = |named: &str, out: Option<&str>| of_cargo(Path::new(named), out.map(Path::new)).unwrap();
        let out = |middle: &str| format!("/u/out/app/{middle}/debug/build/ferroflash-0123/out");
        assert_eq!(of("out", Some(&out("out"))), Path::new("/u/out/app/out"));
        assert_eq!(of("./a/b", Some(&out("a/b"))), Path::new("/u/out/app/a/b"));
        assert_eq!(of("../out", Some(&out("out/x86_64-unknown-linux-gnu"))), Path::new("/u/out/app/out"));
        assert_eq!(of("/elsewhere", Some(&out("out"))), Path::new("/elsewhere"));
        assert_eq!(of("out", None), env::current_dir().unwrap().join("out"));
    }

    #[test]
    fn modules_go_to_the_first_folder_that_is_writable() {
        let folder = env::temp_dir().join(format!("ferroflash-writable-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // A file in the place of a folder stops root, too.
        let (blocked, free) = (folder.join("blocked"), folder.join("free"));
        fs::write(&blocked, "").unwrap();
        let path = write_module(&[blocked.clone(), free.clone()], "one", "text").unwrap();
        assert_eq!(
            (path.clone(), fs::read_to_string(path).unwrap()),
            (free.join("one.ptx"), "text".to_owned())
        );
        assert!(write_module(&[blocked], "one", "text").is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
