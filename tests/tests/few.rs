//! Few queries on many keys in tensors: the planner takes decode kernels, and what these write is right.
use ferroflash::driver::SimDriver;
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use ferroflash::{Attention, DType};
use reference::{Layout, Loaded, Memory, Reference};

/// Plans, launches and judges a problem on the simulator, every checker on.
#[track_caller]
fn check(problem: Problem, layout: Layout, entry: &str) {
    let attention = Attention::new(SimDriver::new("h200").expect("a card"));
    let memory = Memory::random(problem, layout, 7);
    let loaded = Loaded::new(&attention, &memory, None).expect("in device memory");
    let outcome = loaded.run().unwrap_or_else(|e| panic!("{problem}: {e}"));
    assert_eq!(outcome.entry, entry, "{problem}");
    let reference = Reference::new(&memory.inputs().expect("valid"));
    let verdict = outcome.judge(&reference, problem.dtype).expect("of that shape");
    let failures: Vec<_> = verdict.failures().collect();
    assert!(failures.is_empty(), "{problem}: {failures:?}");
}

#[test]
fn tensors_are_decoded_as_a_cache_is() {
    let one = |batch, queries, keys, heads, heads_k, head_dim| {
        let problem = Problem::new(DType::F16, batch, queries, heads, head_dim);
        problem.seqlen_k(keys).heads_k(heads_k)
    };
    const ENTRY: &str = "decode_f16_d128_causal_8_tiles";
    // Sequences that are cut, and whole ones; batches or heads outermost.
    check(one(1, 1, 519, 4, 2, 128), Layout::Bshd, ENTRY);
    check(one(3, 2, 512, 2, 1, 104).mask(Mask::Causal), Layout::Bhsd, ENTRY);
}
