//! Tests problems with few queries on many keys in tensors: the planner selects decode kernels, and their
//! results are right.
use ferroflash::driver::SimDriver;
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use ferroflash::{Attention, DType};
use ferroflash_tests::lacks_kernel;
use reference::{Layout, Loaded, Memory, Reference, Sequences};

/// Plans, launches and judges a problem on the simulator, with every check. Returns false if this build only
/// has a sample of the kernels, without the selected one.
#[track_caller]
fn check(memory: Memory) -> bool {
    let (attention, problem) = (Attention::new(SimDriver::new("h200").expect("a card")), memory.problem);
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

/// The shapes, as `[sequences, queries, keys, query heads, key heads, head dim]`.
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
            let problem = problem.heads_k(heads_k).mask(mask);
            ran += usize::from(check(Memory::random(problem, layout, 7)));
        }
    }
    assert!(ran > 0, "this build carries no decode kernel for any of these");
    println!("{ran} of {} shapes ran: this build carries their kernels", 2 * SHAPES.len());
}

/// Tests varlen tensors with one query per sequence. Sequences have any number of keys, including 0. There
/// may be rows of K that no sequence uses.
#[test]
fn single_queries_of_varlen_sequences_are_decoded() {
    let keys = [1500, 0, 1, 1200, 530];
    let sequences = |unused: i32| {
        let ends = keys.iter().scan(0, |end, keys| {
            *end += keys + unused;
            Some(*end)
        });
        Sequences {
            cu_seqlens_q: (0..=5).collect(),
            cu_seqlens_k: std::iter::once(0).chain(ends).collect(),
            seqused_k: (unused > 0).then(|| keys.to_vec()),
        }
    };
    let mut ran = 0;
    for (dtype, heads, head_dim, mask, layout, unused) in [
        (DType::F16, [8, 2], 128, Mask::Causal, Layout::Bshd, 0),
        (DType::F16, [8, 2], 64, Mask::Causal, Layout::Bshd, 800),
        (DType::Bf16, [4, 1], 128, Mask::Full, Layout::Bhsd, 3),
        (DType::F16, [2, 2], 128, Mask::Window { left: Some(700), right: Some(0) }, Layout::Packed, 20),
    ] {
        let sequences = sequences(unused);
        let rows = [5, 7 + sequences.cu_seqlens_k[5] as usize];
        let one = Problem::new(dtype, 1, 0, heads[0], head_dim).heads_k(heads[1]).mask(mask);
        let problem = sequences.problem(one, rows);
        ran += usize::from(check(Memory::random(problem, layout, 7).with_sequences(sequences).with_poison()));
    }
    assert!(ran > 0, "this build carries no decode kernel for any of these");
}
