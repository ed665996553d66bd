//! `cargo xtask setup`: downloads the device compiler and NVIDIA's assembler and disassembler, if the machine
//! lacks them.
//!
//! All files go below `target/ferroflash-toolchain`; nothing is installed on the machine. Setup unpacks each
//! part into a temporary folder beside its place, runs the part's tools there, and then moves it to its
//! place. You can therefore repeat an interrupted setup: apt and pip keep complete downloads and check them
//! again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_builder::toolchain::{CUDA_BIN, CudaTool, DEBIAN, DeviceCompiler, FOLDER};

use crate::process::{self, Result, spinner};

/// rustc 1.96 with LLVM 22, its library for the host (for macros and build scripts, which are host programs),
/// and the sources of its library.
const COMPILER_PACKAGES: [&str; 5] = [
    "rustc-web=1.96.*",
    "libstd-rust-web-1.96",
    "libstd-rust-web-dev=1.96.*",
    "rust-web-src=1.96.*",
    "libllvm22",
];

/// The libraries to which LLVM links, and the packages of these libraries. Setup downloads only the libraries
/// that the image lacks.
const LIBRARY_PACKAGES: [(&str, &str); 8] = [
    ("libz3.so", "libz3-4"),
    ("libedit.so", "libedit2"),
    ("libxml2.so", "libxml2"),
    ("libffi.so", "libffi8"),
    ("libbsd.so", "libbsd0"),
    ("libmd.so", "libmd0"),
    ("libicu", "libicu72"),
    ("libtinfo.so", "libtinfo6"),
];

/// NVIDIA's wheels, each with its SHA-256 for x86-64 Linux. ptxas has the version of the CUDA 13.0 drivers in
/// use; the disassemblers have no version before 13.2.
const WHEELS: &str = "\
nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-cuda-nvdisasm==13.2.78 --hash=sha256:b4ebcd3c5046bf8039ac52675b9dbefd843600969649ecaab0a42b0713a61dae
nvidia-cuda-cuobjdump==13.2.78 --hash=sha256:394087411405b846bf43aa52ca2ff603bbe18b3b8a1257cda0903e23c17bdbf3
";

/// ptxas of other CUDA versions, each with its wheel. Drivers of these versions compile the kernels' PTX with
/// such a compiler, so CI checks what each of them makes of Hopper's kernels.
pub const OTHER_ASSEMBLERS: [(&str, &str); 3] = [
    (
        "12.4.131",
        "nvidia-cuda-nvcc-cu12==12.4.131 \
         --hash=sha256:e4c9a35435c3b0e36c6397c5696334c9ea6650e524736cbd1c5d345ea099bb04",
    ),
    (
        "12.8.93",
        "nvidia-cuda-nvcc-cu12==12.8.93 \
         --hash=sha256:2d6dc36fb7cb5ac9c0b8825bc13d193c35487a315664007287d0126531238011",
    ),
    (
        "13.5.37",
        "nvidia-cuda-nvcc==13.5.37 \
         --hash=sha256:f5c4f7ead5d964fb4af42bbf1e6d3ec3c1e6e9d83b53749f691d387e7fcaa3a7",
    ),
];

/// Downloads the missing parts, and prints the parts that are used.
pub fn run(root: &Path) -> Result {
    let compiler = device_compiler(root)?;
    println!("device compiler  {} ({})", compiler.rustc.display(), compiler.version);
    for (tool, path) in CudaTool::ALL.into_iter().zip(cuda_tools(root)?) {
        println!("{:16} {}", tool.name(), path.display());
    }
    for (version, path) in other_assemblers(root)? {
        println!("ptxas {version:10} {}", path.display());
    }
    Ok(())
}

/// Returns the version and the path of each [other ptxas](OTHER_ASSEMBLERS), after downloading it if
/// necessary.
pub fn other_assemblers(root: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let folder = root.join(FOLDER);
    let kept = folder.join("ptxas");
    let mut found = Vec::new();
    for (version, wheel) in OTHER_ASSEMBLERS {
        let path = kept.join(version);
        if !path.is_file() {
            let partial = fresh_folder(&folder.join("ptxas.partial"))?;
            unpack_wheels(wheel, &format!("ptxas {version}"), &folder.join("wheels"), &partial)?;
            // CUDA 12 and 13 have different folders.
            let unpacked = ["cuda_nvcc", "cu13"].map(|of| partial.join("nvidia").join(of).join("bin/ptxas"));
            let unpacked = unpacked.into_iter().find(|ptxas| ptxas.is_file());
            let unpacked = unpacked.ok_or_else(|| format!("the wheel {wheel} has no ptxas"))?;
            make_executable(&unpacked)?;
            process::quiet(Command::new(&unpacked).arg("--version"))?;
            fs::create_dir_all(&kept)?;
            fs::rename(&unpacked, &path)?;
            fs::remove_dir_all(&partial)?;
        }
        found.push((version, path));
    }
    Ok(found)
}

/// Returns the device compiler, after downloading it if necessary.
pub fn device_compiler(root: &Path) -> Result<DeviceCompiler> {
    let Err(missing) = DeviceCompiler::locate(root) else { return Ok(DeviceCompiler::locate(root)?) };
    if process::find("apt-get").is_none() || process::find("dpkg-deb").is_none() {
        return Err(missing.into());
    }
    let folder = root.join(FOLDER);
    let downloads = folder.join("downloads");
    let partial = fresh_folder(&folder.join("debian.partial"))?;
    fs::create_dir_all(&downloads)?;

    fetch_packages(&downloads, &COMPILER_PACKAGES).map_err(|e| format!("{e}\n{missing}"))?;
    unpack(&downloads, &partial, &COMPILER_PACKAGES)?;
    let rustc = partial.join("usr/bin/rustc");
    // The libraries that one round adds may need further libraries, so there may be several rounds.
    for _ in 0..4 {
        let packages = missing_libraries(&partial)?;
        if packages.is_empty() {
            break;
        }
        fetch_packages(&downloads, &packages)?;
        unpack(&downloads, &partial, &packages)?;
    }
    DeviceCompiler::inspect(&rustc).map_err(|problem| format!("the unpacked compiler {problem}"))?;
    replace(&partial, &folder.join(DEBIAN))?;
    fs::remove_dir_all(&downloads)?;
    Ok(DeviceCompiler::locate(root)?)
}

/// Returns the paths of ptxas, nvdisasm and cuobjdump, after downloading them if necessary.
pub fn cuda_tools(root: &Path) -> Result<Vec<PathBuf>> {
    let locate = || {
        CudaTool::ALL.into_iter().map(|tool| tool.locate(root)).collect::<std::result::Result<Vec<_>, _>>()
    };
    let Err(missing) = locate() else { return Ok(locate()?) };
    let folder = root.join(FOLDER);
    let partial = fresh_folder(&folder.join("cuda.partial"))?;
    let what = "ptxas, nvdisasm and cuobjdump (45 MB)";
    unpack_wheels(WHEELS, what, &folder.join("wheels"), &partial).map_err(|e| format!("{missing}\n{e}"))?;
    let bin = partial.join(Path::new(CUDA_BIN).strip_prefix("cuda")?);
    for tool in CudaTool::ALL {
        let path = bin.join(tool.name());
        make_executable(&path)?;
        process::quiet(Command::new(&path).arg("--version"))?;
    }
    replace(&partial, &folder.join("cuda"))?;
    Ok(locate()?)
}

/// Downloads wheels to `downloads`, unpacks them, and removes the downloads. Each line of `list` has one
/// requirement with its hash.
pub fn unpack_wheels(list: &str, what: &str, downloads: &Path, into: &Path) -> Result {
    let cure = "NVIDIA's wheels need python3 with pip: apt-get install python3-pip, or install a CUDA \
                toolkit and put it on PATH";
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    if !pip.is_ok_and(|output| output.status.success()) {
        return Err(cure.into());
    }
    fs::create_dir_all(downloads)?;
    let requirements = downloads.join("requirements.txt");
    fs::write(&requirements, list)?;
    let progress = spinner(&format!("fetching {what}"));
    // The command names platform and interpreter of the wheels, so that any Python can download them.
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
    for platform in ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux2010_x86_64", "any"] {
        pip.args(["--platform", platform]);
    }
    pip.args(["--disable-pip-version-check", "--requirement"])
        .arg(&requirements)
        .arg("--dest")
        .arg(downloads);
    process::quiet(&mut pip).map_err(|e| format!("{e}\n{cure}"))?;
    for wheel in files(downloads, ".whl")? {
        process::quiet(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(into))?;
    }
    progress.finish_and_clear();
    Ok(fs::remove_dir_all(downloads)?)
}

/// Downloads packages with apt, which checks every file against its signed lists and keeps complete files.
fn fetch_packages(downloads: &Path, packages: &[&str]) -> Result {
    let progress = spinner(&format!("fetching {} (140 MB in all)", packages.join(", ")));
    let download = || {
        // As root, apt would switch to a user that cannot write to this folder, and print a warning.
        let mut apt = Command::new("apt-get");
        apt.args(["-o", "APT::Sandbox::User=", "-q", "download"]).args(packages).current_dir(downloads);
        process::quiet(&mut apt)
    };
    let known = Command::new("apt-get").args(["-q", "--print-uris", "download"]).args(packages).output()?;
    if !known.status.success() {
        progress.set_message("apt-get update");
        let cure = "apt does not know the packages; run `apt-get update` as root, on Debian 12 with \
                    security updates";
        process::quiet(Command::new("apt-get").args(["-q", "update"])).map_err(|e| format!("{e}\n{cure}"))?;
    }
    download().map_err(|e| format!("{e}\nThe download can be resumed: run `cargo xtask setup` again"))?;
    progress.finish_and_clear();
    Ok(())
}

fn unpack(downloads: &Path, into: &Path, packages: &[&str]) -> Result {
    let progress = spinner("unpacking");
    for package in packages {
        let name = package.split('=').next().unwrap_or(package);
        let found = files(downloads, ".deb")?.into_iter().find(|p| {
            let file = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            file.split('_').next() == Some(name)
        });
        let deb = found.ok_or_else(|| format!("apt-get download left no file of {name}"))?;
        progress.set_message(format!("unpacking {name}"));
        if name == "rust-web-src" {
            // Only a tenth of the sources belongs to the library. The other sources belong to the compiler
            // and its tests.
            let script = "dpkg-deb --fsys-tarfile \"$0\" \
                          | tar -x -C \"$1\" --wildcards './usr/src/*/library' './usr/lib/*'";
            process::quiet(Command::new("sh").args(["-c", script]).arg(&deb).arg(into))?;
        } else {
            process::quiet(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(into))?;
        }
    }
    progress.finish_and_clear();
    Ok(())
}

/// The packages of the libraries that the unpacked compiler needs, but the loader does not find.
fn missing_libraries(root: &Path) -> Result<Vec<&'static str>> {
    let mut paths = Vec::new();
    for lib in [root.join("usr/lib"), root.join("lib")] {
        let folders = fs::read_dir(lib).into_iter().flatten().flatten().map(|e| e.path());
        paths.extend(folders.filter(|p| p.to_string_lossy().ends_with("-linux-gnu")));
    }
    let library_path = std::env::join_paths(&paths)?;
    let mut libraries = Vec::new();
    for folder in &paths {
        libraries.extend(files(folder, "")?.into_iter().filter(|p| p.to_string_lossy().contains(".so")));
    }
    let output = Command::new("ldd").args(&libraries).env("LD_LIBRARY_PATH", library_path).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let missing: Vec<&str> = text.lines().filter(|line| line.contains("not found")).map(str::trim).collect();
    let package =
        |line: &&str| LIBRARY_PACKAGES.iter().find(|(library, _)| line.starts_with(library)).map(|p| p.1);
    if let Some(line) = missing.iter().find(|line| package(line).is_none()) {
        return Err(format!("the unpacked compiler needs a library that no known package has: {line}").into());
    }
    let mut packages: Vec<_> = missing.iter().filter_map(package).collect();
    packages.sort_unstable();
    packages.dedup();
    Ok(packages)
}

pub fn files(folder: &Path, suffix: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() && path.to_string_lossy().ends_with(suffix) {
            found.push(path);
        }
    }
    Ok(found)
}

pub fn fresh_folder(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

pub fn replace(from: &Path, to: &Path) -> Result {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    Ok(fs::rename(from, to)?)
}

#[cfg(unix)]
pub fn make_executable(path: &Path) -> Result {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
