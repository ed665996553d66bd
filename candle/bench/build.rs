//! Links candle-flash-attn into the bench if `CANDLE_FLASH_ATTN` is set. This environment variable names a
//! folder with candle-flash-attn's package and its compiled kernels, `libflashattention.a`. `cargo xtask
//! candle peer` makes this folder.
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-env-changed=CANDLE_FLASH_ATTN");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("theirs.rs");
    let Some(folder) = env::var_os("CANDLE_FLASH_ATTN").map(PathBuf::from) else {
        fs::write(out, "").expect("OUT_DIR is there");
        return;
    };
    let source = folder.join("src/lib.rs");
    let module = format!(
        "#[allow(missing_docs, clippy::all, dead_code)]\n#[path = {:?}]\npub mod theirs;\n",
        source.display().to_string()
    );
    fs::write(out, module).expect("OUT_DIR is there");
    println!("cargo::rerun-if-changed={}", folder.display());
    println!("cargo::rustc-cfg=theirs");
    println!("cargo::rustc-link-search={}", folder.display());
    println!("cargo::rustc-link-lib=static=flashattention");
    println!("cargo::rustc-link-lib=dylib=cudart");
    println!("cargo::rustc-link-lib=dylib=stdc++");
}
