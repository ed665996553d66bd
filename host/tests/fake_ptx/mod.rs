//! Stand-ins for the kernels' PTX.
use ferroflash::*;
use std::path::PathBuf;
use std::sync::Once;

/// Replaces the kernels' PTX by stand-ins, so that these tests need no device compiler.
pub fn with_ptx() {
    static WRITE: Once = Once::new();
    WRITE.call_once(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fake-ptx");
        std::fs::create_dir_all(&folder).expect("a folder");
        for kernel in spec::kernels() {
            let (text, file) = (format!("// {}", kernel.symbol), folder.join(kernel.symbol));
            // Other processes of these tests read the same files, so each file is written completely before
            // it gets its name.
            let own = file.with_extension(std::process::id().to_string());
            std::fs::write(&own, text).expect("a file");
            std::fs::rename(own, file.with_extension("ptx")).expect("a file");
        }
        // SAFETY: the fake drivers load no text and run nothing.
        unsafe { ptx::replace_from(&folder) }.expect("once in a process");
    });
}
