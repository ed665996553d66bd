//! Builds the fake driver, and puts it where programs look for the driver.
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The names under which programs open the driver, and NCCL.
pub const NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "libnccl.so"];

/// Returns a folder that contains only the fake library. This function builds the library, because the
/// functions of a dependency would be linked beside the functions of the crate `libcuda`.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fake-cuda");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        build.args(["build", "--quiet", "--offline", "--package", "ferroflash-libcuda-fake", "--target-dir"]);
        let built =
            build.arg(&folder).current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo starts");
        assert!(built.success(), "{build:?}");
        let names = folder.join("names");
        std::fs::create_dir_all(&names).expect("a folder");
        for name in NAMES {
            // A concurrent test process may already have made the link.
            let _ = symlink(folder.join("debug/libfake_cuda.so"), names.join(name));
            assert!(names.join(name).is_file(), "{name} is linked");
        }
        names
    })
}
