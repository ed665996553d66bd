//! Stand-ins for the kernels' PTX.
use ferroflash::*;
use std::path::PathBuf;
use std::sync::Once;

/// Stand-ins for the kernels' PTX, so that these tests need no device compiler.
pub fn with_ptx() {
    static WRITE: Once = Once::new();
    WRITE.call_once(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fake-ptx");
        std::fs::create_dir_all(&folder).expect("a folder");
        for kernel in spec::kernels() {
            let text = format!("// {}", kernel.symbol);
            std::fs::write(folder.join(kernel.symbol).with_extension("ptx"), text).expect("a file");
        }
        // SAFETY: every test of a file waits here before it reads the environment.
        unsafe { std::env::set_var(ptx::PTX_DIR_VARIABLE, folder) };
    });
}
