//! Few queries on many keys in tensors: the planner selects decode kernels, and their results are right.
use ferroflash::driver::SimDriver;
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use ferroflash::{Attention, DType};
use ferroflash_tests::lacks_kernel;
use reference::{Layout, Loaded, Memory, Reference};

/// Plans, launches and judges a problem on the simulator with every checker. False if this build has only the
/// sample of the kernels, without the selected one.
#[track_caller]
fn check(problem: Problem, layout: Layout) -> bool {
    let attention = Attention::new(SimDriver::new("h200").expect("a card"));
    let memory = Memory::random(problem, layout, 7);
    let loaded = Loaded::new(&attention, &memory, None).expect("in device memory");
    let outcome = match loaded.run() {
        Ok(outcome) => outcome,
        Err(error) if lacks_kernel(&error) => return false,
        Err(error) => panic!("{problem}: {error}"),
    };
    assert!(outcome.entry.starts_with("decode_"), "{problem}: {}", outcome.entry);
    let reference = Reference::new(&memory.inputs().expect("valid"));
    let verdict = outcome.judge(&reference, problem.dtype).expect("of that shape");
    let failures: Vec<_> = verdict.failures().collect();
    assert!(failures.is_empty(), "{problem}: {failures:?}");
    true
}

/// `[sequences, queries, keys, query heads, key heads, head dim]`.
const SHAPES: [[usize; 6]; 6] = [
    [1, 1, 519, 4, 2, 128],
    [3, 2, 512, 2, 1, 104],
    [2, 4, 512, 4, 1, 128],
    [1, 1, 1030, 2, 1, 64],
    [1, 3, 1024, 4, 1, 64],
    [1, 1, 512, 2, 2, 256],
];

#[test]
fn tensors_are_decoded_as_a_cache_is() {
    let mut ran = 0;
    for dtype in [DType::F16, DType::Bf16] {
        for (number, [batch, queries, keys, heads, heads_k, head_dim]) in SHAPES.into_iter().enumerate() {
            let problem = Problem::new(dtype, batch, queries, heads, head_dim).seqlen_k(keys);
            let (mask, layout) = [(Mask::Full, Layout::Bshd), (Mask::Causal, Layout::Bhsd)][number % 2];
            ran += usize::from(check(problem.heads_k(heads_k).mask(mask), layout));
        }
    }
    assert!(ran > 0, "this build carries no decode kernel for any of these");
    println!("{ran} of {} shapes ran: this build carries their kernels", 2 * SHAPES.len());
}
