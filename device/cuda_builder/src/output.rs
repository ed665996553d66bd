//! The results of a build: [`Output`], with one [`Module`] per entry.

use std::path::PathBuf;
use std::time::SystemTime;

use crate::toolchain::RUSTC_VARIABLE;
use crate::{Arch, Contract};

/// The result of a build.
#[derive(Debug)]
pub struct Output {
    /// One module per entry, in the order of the contracts.
    pub modules: Vec<Module>,
    /// The source files and manifests from which the modules were built.
    pub inputs: Vec<PathBuf>,
    /// rustc's warnings about the device crates; empty if there are none.
    pub warnings: String,
    /// The time at which the build began.
    #[cfg_attr(not(feature = "archive"), expect(dead_code, reason = "only archives have an origin"))]
    pub(crate) started: SystemTime,
    /// A digest of the builder's settings.
    #[cfg_attr(not(feature = "archive"), expect(dead_code, reason = "only archives have an origin"))]
    pub(crate) settings: String,
}

/// The PTX of one entry: a complete module.
#[derive(Debug, Clone)]
pub struct Module {
    /// The entry's launch contract.
    pub contract: Contract,
    /// The target for which the module was compiled.
    pub arch: Arch,
    /// The text of the PTX module.
    pub text: String,
    /// The file that contains this text until the next build of this crate.
    pub path: PathBuf,
}

impl Output {
    /// Tells cargo to run the build script again if a source of the kernels or the choice of the device
    /// compiler changes.
    pub fn emit_rerun_if_changed(&self) {
        for input in &self.inputs {
            println!("cargo:rerun-if-changed={}", input.display());
        }
        println!("cargo:rerun-if-env-changed={}", RUSTC_VARIABLE);
    }
}
