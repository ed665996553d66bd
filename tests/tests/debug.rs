//! Tests that prints and assertions in kernels are present in a debug build and absent from release PTX.
use cuda_builder::CudaBuilder;
use ferroflash::driver::SimDriver;
use ferroflash::kernels::{entries, entry};
use ferroflash::{Attention, ptx};
use ferroflash_tests::is_carried;
use reference::{Loaded, Reference, reproducer};
use std::path::Path;

#[test]
fn release_kernels_print_and_assert_nothing() {
    for entry in entries().filter(|entry| is_carried(entry.contract.symbol)) {
        let text = ptx::source(entry.contract.symbol).expect("carried");
        for words in ["vprintf", "trap;", "panic"] {
            assert!(!text.contains(words), "{}: {words}", entry.contract.symbol);
        }
    }
}

#[test]
fn debug_kernels_assert_their_bounds_and_compute_the_same() {
    let symbol = "fwd_f16_d64_full_32x32_s2";
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-gpu");
    let output = CudaBuilder::new(kernels)
        .release(false)
        .entries(spec::kernels())
        .features(["lineage", "training"])
        .only([symbol])
        .target_dir(Path::new(env!("CARGO_TARGET_TMPDIR")).join("debug-kernels"))
        .build()
        .expect("compiles");
    let text = &output.modules[0].text;
    assert!(text.contains("vprintf") && text.contains("trap;"), "assertions that say where they failed");

    let attention = Attention::new(SimDriver::new("l4").expect("a known card"));
    let entry = entry(symbol).expect("in the table");
    // SAFETY: the simulator checks every access.
    unsafe { attention.load_from(entry.contract.symbol, text) }.expect("PTX");
    let memory = reproducer(1)[0].memory();
    let outcome = Loaded::new(&attention, &memory, Some(symbol)).and_then(|loaded| loaded.run());
    let reference = Reference::new(&memory.inputs().expect("valid"));
    let verdict =
        outcome.expect("no assertion fails").judge(&reference, entry.dtype).expect("the same shape");
    assert!(verdict.passed(), "{:?}", verdict.out);
}
