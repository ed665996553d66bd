//! Downloads the package candle-flash-attn from the registry. The tests of the package run on FerroFlash's
//! kernels. The kernels of the package are the peer in comparisons. This repository contains no part of the
//! package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::toolkit;
use crate::process::{self, Result, bar};
use crate::setup;

/// Name of the package.
const PACKAGE: &str = "candle-flash-attn";
/// Version of the package. The stand-in, candle/candle-flash-attn, has the same name and the same version.
const VERSION: &str = "0.11.1";

/// The CUTLASS version of the package's kernels. The commit that the package's build script downloads has
/// this version.
const CUTLASS: &str = "\
nvidia-cutlass==3.5.0.0 --hash=sha256:4ec3ab4820dd4ae3ebc2c5ddf23352b0dc90f779435284e7dce822006adc51f6
";

/// The kernels that are compared: f16, head dims 64 and 128.
const KERNELS: [&str; 7] = [
    "flash_api",
    "flash_fwd_hdim64_fp16_sm80",
    "flash_fwd_hdim64_fp16_causal_sm80",
    "flash_fwd_hdim128_fp16_sm80",
    "flash_fwd_hdim128_fp16_causal_sm80",
    "flash_fwd_splitkv_hdim64_fp16_causal_sm80",
    "flash_fwd_splitkv_hdim128_fp16_causal_sm80",
];

/// The flags of the package's build script, and switches that omit other instances. The switches do not
/// change the compared instances.
const FLAGS: [&str; 18] = [
    "-gencode=arch=compute_90a,code=sm_90a",
    "-std=c++17",
    "-O3",
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "--use_fast_math",
    "-Xcompiler",
    "-fPIC",
    "-w",
    "-DFLASHATTENTION_DISABLE_DROPOUT",
    "-DFLASHATTENTION_DISABLE_ALIBI",
    "-DFLASHATTENTION_DISABLE_SOFTCAP",
    "-DFLASHATTENTION_DISABLE_LOCAL",
    "-DFLASHATTENTION_DISABLE_UNEVEN_K",
];

/// The folder of the package in cargo's cache.
fn package(root: &Path) -> Result<PathBuf> {
    // In candle's workspace, a stand-in replaces the package. This separate, empty workspace requests the
    // package itself.
    let folder = toolkit::folder(root, "package")?;
    let manifest = folder.join("Cargo.toml");
    let text = format!(
        "[package]\nname = \"peer\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n\
         [dependencies]\n{PACKAGE} = \"={VERSION}\"\n[workspace]\n"
    );
    fs::write(&manifest, text)?;
    fs::write(folder.join("lib.rs"), "")?;
    fs::copy(root.join("candle/Cargo.lock"), folder.join("Cargo.lock"))?;
    toolkit::package(&manifest, PACKAGE)
}

/// Copies the package's unmodified tests to the stand-in's folder.
pub fn tests(root: &Path) -> Result {
    let folder = root.join("candle/candle-flash-attn/tests");
    let name = "flash_attn_tests.rs";
    let theirs = fs::read(package(root)?.join("tests").join(name))?;
    // If the file were written again, cargo would compile it again.
    if fs::read(folder.join(name)).ok().as_ref() != Some(&theirs) {
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), theirs)?;
    }
    Ok(())
}

/// Returns a folder with the package's sources, and with its kernels as `libflashattention.a`, for the
/// environment variable `CANDLE_FLASH_ATTN`, which the build of candle/bench reads. nvcc takes some minutes
/// per file.
pub fn library(root: &Path) -> Result<PathBuf> {
    let (package, out) = (package(root)?, toolkit::folder(root, "peer")?);
    let (archive, nvcc) = (out.join("libflashattention.a"), toolkit::nvcc(root)?);
    if archive.is_file() {
        return Ok(out);
    }
    let cutlass = out.join("cutlass");
    if !cutlass.is_dir() {
        let partial = setup::fresh_folder(&out.join("cutlass.partial"))?;
        setup::unpack_wheels(CUTLASS, "CUTLASS's headers (4 MB)", &out.join("wheels"), &partial)?;
        setup::replace(&partial, &cutlass)?;
    }
    let headers = cutlass.join("cutlass_library/source/include");
    let missing = out.join("missing.cu");
    fs::write(&missing, others())?;
    let sources = KERNELS.map(|name| package.join("kernels").join(name).with_extension("cu"));
    let progress = bar("compiling candle-flash-attn's kernels", sources.len() + 1);
    let mut objects = Vec::new();
    for source in sources.iter().chain([&missing]) {
        let object = out.join(source.file_stem().ok_or("a source without a name")?).with_extension("o");
        if !object.is_file() {
            let partial = object.with_extension("partial.o");
            let mut command = Command::new(nvcc.bin.join("nvcc"));
            nvcc.on(&mut command);
            command.args(FLAGS).arg("-I").arg(&headers).arg("-I").arg(package.join("kernels"));
            process::quiet(command.arg("-c").arg(source).arg("-o").arg(&partial))?;
            fs::rename(partial, &object)?;
        }
        objects.push(object);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let sources = setup::fresh_folder(&out.join("src"))?;
    for file in setup::files(&package.join("src"), ".rs")? {
        fs::copy(&file, sources.join(file.file_name().ok_or("a file without a name")?))?;
    }
    process::quiet(Command::new("ar").arg("rcs").arg(&archive).args(objects))?;
    Ok(out)
}

/// Definitions of functions that flash_api.cu references, but that no program calls. Each of these functions
/// prints an error.
fn others() -> String {
    let mut text = String::from(
        "#include <cstdio>\n#include <cstdlib>\n#include <cutlass/numeric_types.h>\n#include \"flash.h\"\n\
         #define MISSING(F, T, D, C) \\\n\
         template<> void F<cutlass::T, D, C>(Flash_fwd_params &, cudaStream_t) \\\n\
         { fprintf(stderr, \"not built: %s %s %d\\n\", #F, #T, D); abort(); }\n",
    );
    for (function, head_dims, kinds) in [
        ("run_mha_fwd_", &[32, 64, 96, 128, 160, 192, 224, 256, 512][..], &["true", "false"][..]),
        ("run_mha_fwd_splitkv_paged_", &[64, 128, 256, 512][..], &["true"][..]),
    ] {
        for element in ["half_t", "bfloat16_t"] {
            for head_dim in head_dims {
                for causal in ["true", "false"] {
                    let built =
                        element == "half_t" && [64, 128].contains(head_dim) && kinds.contains(&causal);
                    if !built {
                        text += &format!("MISSING({function}, {element}, {head_dim}, {causal})\n");
                    }
                }
            }
        }
    }
    text
}
