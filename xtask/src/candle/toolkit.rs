//! Provides nvcc, which comes from one of three sources. The first source is the machine. The second source
//! is wheels, together with empty libraries for linking. On the machine that runs the program, the real
//! libraries replace the empty ones. The third source is a stand-in that writes empty files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, io::Write as _};

use cuda_builder::toolchain::FOLDER;

use crate::process::{self, Result, stdout};
use crate::setup;

/// Wheels of CUDA 13.0, each with its SHA-256 for x86-64 Linux. A driver of CUDA 13.0 loads the PTX of this
/// version. `setup` lists the first wheel too.
const WHEELS: &str = "\
nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
";

/// The libraries that candle links. Each line has the folder of the library's declarations in cudarc, the
/// library's name, and its file name in CUDA 13.
const LIBRARIES: [[&str; 3]; 5] = [
    ["driver", "cuda", "libcuda.so.1"],
    ["nvrtc", "nvrtc", "libnvrtc.so.13"],
    ["cublas", "cublas", "libcublas.so.13"],
    ["cublaslt", "cublasLt", "libcublasLt.so.13"],
    ["curand", "curand", "libcurand.so.10"],
];

/// Default compute capability of candle's kernels, which is the H100's.
const CAPABILITY: &str = "90";

/// An nvcc: the folder of its program, and the root folder of its CUDA toolkit.
pub struct Nvcc {
    pub bin: PathBuf,
    home: Option<PathBuf>,
}

impl Nvcc {
    /// Sets the environment in which a command finds nvcc.
    pub fn on(&self, command: &mut Command) {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = [self.bin.clone()].into_iter().chain(env::split_paths(&path));
        if let Ok(path) = env::join_paths(folders) {
            command.env("PATH", path);
        }
        if let Some(home) = &self.home {
            command.env("CUDA_HOME", home);
        }
        if env::var_os("CUDA_COMPUTE_CAP").is_none() {
            command.env("CUDA_COMPUTE_CAP", CAPABILITY);
        }
    }

    /// The lines of [`on`](Self::on) for a shell. candle's kernels are built for one compute capability,
    /// which the user may change.
    pub fn exports(&self) -> String {
        let home = self.home.iter().map(|home| format!("export CUDA_HOME={}\n", quoted(home)));
        let path = format!("export PATH={}:\"$PATH\"\n", quoted(&self.bin));
        let capability = format!("export CUDA_COMPUTE_CAP=\"${{CUDA_COMPUTE_CAP:-{CAPABILITY}}}\"\n");
        home.chain([path, capability]).collect()
    }
}

/// A path as one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Makes a folder below `target`.
pub fn folder(root: &Path, name: &str) -> Result<PathBuf> {
    let folder = root.join("target/candle-parts").join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// A stand-in that prints a version and writes empty files.
pub fn stand_in(root: &Path) -> Result<Nvcc> {
    let bin = folder(root, "stand-in")?;
    let program = bin.join("nvcc");
    fs::copy(root.join("candle/nvcc-stand-in"), &program)?;
    setup::make_executable(&program)?;
    Ok(Nvcc { bin, home: None })
}

/// The nvcc of the machine, or an nvcc from wheels.
pub fn nvcc(root: &Path) -> Result<Nvcc> {
    if let Some(bin) = process::find("nvcc").as_deref().and_then(Path::parent) {
        return Ok(Nvcc { bin: bin.to_owned(), home: None });
    }
    if let Some(home) = env::var_os("CUDA_HOME").map(PathBuf::from).filter(|h| h.join("bin/nvcc").is_file()) {
        return Ok(Nvcc { bin: home.join("bin"), home: Some(home) });
    }
    let (toolchain, made) = (root.join(FOLDER), root.join(FOLDER).join("candle"));
    let home = made.join("nvidia/cu13");
    if !home.join("bin/nvcc").is_file() {
        let partial = setup::fresh_folder(&toolchain.join("candle.partial"))?;
        let what = "nvcc and its headers (105 MB)";
        setup::unpack_wheels(WHEELS, what, &toolchain.join("candle-wheels"), &partial)?;
        complete(&partial.join("nvidia/cu13"))?;
        setup::replace(&partial, &made)?;
    }
    // A toolkit that an older commit made may lack libraries.
    let stubs = home.join("lib/stubs");
    if missing(&stubs).next().is_some() {
        let sources = package(&root.join("candle/Cargo.toml"), "cudarc")?.join("src");
        add_libraries(&sources, &stubs)?;
    }
    Ok(Nvcc { bin: home.join("bin"), home: Some(home) })
}

/// Turns the unpacked wheels into a toolkit: makes programs executable, and adds file names that build
/// scripts look for.
fn complete(home: &Path) -> Result {
    for tool in [setup::files(&home.join("bin"), "")?, setup::files(&home.join("nvvm/bin"), "")?].concat() {
        setup::make_executable(&tool)?;
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("lib", home.join("lib64"))?;
        std::os::unix::fs::symlink("libcudart.so.13", home.join("lib/libcudart.so"))?;
    }
    Ok(())
}

/// The lines of [`LIBRARIES`] whose empty libraries a folder lacks.
fn missing(stubs: &Path) -> impl Iterator<Item = [&'static str; 3]> {
    LIBRARIES.into_iter().filter(|[_, name, _]| !stubs.join(format!("lib{name}.so")).is_file())
}

/// Adds the missing empty libraries for linking, with the names that cudarc's sources declare.
fn add_libraries(sources: &Path, stubs: &Path) -> Result {
    fs::create_dir_all(stubs)?;
    for [module, name, soname] in missing(stubs) {
        let text = fs::read_to_string(sources.join(module).join("sys/mod.rs"))?;
        let mut functions: Vec<_> = declared(&text).collect();
        functions.sort_unstable();
        functions.dedup();
        // An interrupted compiler leaves no library under the library's name.
        let partial = stubs.join(format!("lib{name}.partial"));
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-o"]);
        compiler.arg(&partial).arg(format!("-Wl,-soname,{soname}"));
        let mut running = compiler.stdin(Stdio::piped()).spawn()?;
        let source: String =
            functions.iter().map(|function| format!("void {function}(void) {{}}\n")).collect();
        running.stdin.take().ok_or("cc takes no input")?.write_all(source.as_bytes())?;
        if !running.wait()?.success() {
            return Err(format!("cc failed to make a library with {name}'s names").into());
        }
        fs::rename(partial, stubs.join(format!("lib{name}.so")))?;
    }
    Ok(())
}

/// The names of the CUDA functions that a file declares.
fn declared(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ")
        .skip(1)
        .filter_map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
            rest[end..].trim_start().starts_with('(').then_some(&rest[..end])
        })
        .filter(|name| name.starts_with("cu") && *name != "culib" || name.starts_with("nvrtc"))
}

/// The folder of a dependency's package, which cargo downloads if necessary.
pub fn package(manifest: &Path, name: &str) -> Result<PathBuf> {
    let mut command = process::cargo();
    command.args(["metadata", "--format-version", "1", "--manifest-path"]).arg(manifest);
    let metadata: serde_json::Value = serde_json::from_str(&stdout(&mut command)?)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages.filter(|package| package["name"] == name && !package["source"].is_null());
    let manifest = found.filter_map(|package| package["manifest_path"].as_str()).next();
    let manifest = manifest.ok_or_else(|| format!("no dependency {name} from a registry"))?;
    Ok(Path::new(manifest).parent().ok_or("a manifest without a folder")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_exports() {
        let home = PathBuf::from("/it's/a toolkit");
        let nvcc = Nvcc { bin: home.join("bin"), home: Some(home) };
        let script = nvcc.exports() + "printf '%s|%s|%s' \"$CUDA_HOME\" \"$PATH\" \"$CUDA_COMPUTE_CAP\"";
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script]).env("PATH", "/before").env_remove("CUDA_COMPUTE_CAP");
        let said = stdout(&mut shell).unwrap();
        assert_eq!(said, "/it's/a toolkit|/it's/a toolkit/bin:/before|90");
    }

    #[test]
    fn declarations_are_found() {
        let text = "pub fn cuInit(a: u32) -> R;\n unsafe fn cuMemcpy_v2 (x); fn other(); fn cuNot<T>(x: T); \
                    fn nvrtcVersion(a: i32); pub unsafe fn culib() -> &Lib;";
        assert_eq!(declared(text).collect::<Vec<_>>(), ["cuInit", "cuMemcpy_v2", "nvrtcVersion"]);
    }

    #[test]
    fn only_missing_libraries_are_added() {
        let folder = env::temp_dir().join(format!("ferroflash-stubs-{}", std::process::id()));
        let (sources, stubs) = (folder.join("src"), folder.join("stubs"));
        for [module, _, _] in LIBRARIES {
            fs::create_dir_all(sources.join(module).join("sys")).unwrap();
            fs::write(sources.join(module).join("sys/mod.rs"), "pub fn cuInit();").unwrap();
        }
        fs::create_dir_all(&stubs).unwrap();
        fs::write(stubs.join("libcuda.so"), "an older commit made it").unwrap();
        add_libraries(&sources, &stubs).unwrap();
        assert_eq!(missing(&stubs).count(), 0);
        assert_eq!(fs::read_to_string(stubs.join("libcuda.so")).unwrap(), "an older commit made it");
        assert_eq!(fs::read_dir(&stubs).unwrap().count(), LIBRARIES.len(), "no partial file is left");
        fs::remove_dir_all(&folder).unwrap();
    }
}
