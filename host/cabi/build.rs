//! Keeps the symbols of this crate's dependencies out of the shared library's exports.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        // This crate's own functions are in object files. The functions of other crates are in libraries,
        // whose symbols the linker can hide.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}
