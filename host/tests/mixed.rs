//! Tests mixed batches on KV caches: when the planner divides a batch between a decode kernel and a prefill
//! kernel, and which kernels the launch has.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, Shape, card, decode};
use ferroflash::{plan::ScratchBytes, request::*, *};

/// A batch of 8 sequences with at most 512 queries each. The batch has the number of rows that equal numbers
/// of queries would have.
const BATCH: Shape = Shape {
    dtype: DType::F16,
    batch: 8,
    queries: 512,
    packed: true,
    heads: [32, 8],
    head_dim: 128,
    page: Some(16),
    max_k: 4096,
};
/// A batch of 256 sequences of one query.
const SINGLE: Shape = Shape { batch: 256, queries: 1, ..BATCH };

type Change = fn(AttentionRequest<'static>) -> AttentionRequest<'static>;

/// Returns the request with `rows` rows of Q in all.
fn request(shape: Shape, rows: usize) -> AttentionRequest<'static> {
    let mut d = decode(shape).mask(Mask::Causal);
    for view in [&mut d.q, &mut d.o] {
        view.shape[1] = rows;
        view.elements = (rows * shape.heads[0] * shape.head_dim) as u64;
    }
    d
}

const D128: &str = "mixed_few_f16_d128_causal_16_rows_w4";
const D64: &str = "mixed_few_f16_d64_causal_16_rows";
const PORTABLE: &str = "paged_f16_d128_causal_128x48";
const HOPPER: &str = "hopper_paged_f16_d128_causal_128x128";

fn same(d: AttentionRequest<'static>) -> AttentionRequest<'static> {
    d
}

/// A card, a shape, the number of rows of Q, a change of the request, and the first kernel of the plan.
#[rustfmt::skip]
const PLANS: &[(&str, Shape, usize, Change, &str)] = &[
    ("l4", BATCH, 1000, same, D128),
    ("a100", BATCH, 8 * 512 - 1, |d| d.mask(Mask::Full), D128),
    ("l4", Shape { head_dim: 40, ..BATCH }, 1000, same, D64),
    ("l4", Shape { page: Some(1), ..BATCH }, 1000, same, D128),
    ("l4", Shape { page: None, ..BATCH }, 1000, same, D128),
    ("l4", Shape { heads: [16, 1], ..BATCH }, 1000, same, D128),
    ("l4", SINGLE, 256, same, D128),
    ("l4", Shape { batch: 1, queries: 4, ..BATCH }, 4, same, D128),
    // If the mean number of queries is more than half of the maximum, one kernel of Hopper takes all
    // sequences.
    ("h200", BATCH, 8 * 256, same, D128),
    ("h200", BATCH, 8 * 256 + 1, same, HOPPER),
    ("h200", Shape { max_k: 1008, ..BATCH }, 8 * 256, same, HOPPER),
    ("h200", Shape { max_k: 1008, ..BATCH }, 8 * 32, same, D128),
    ("h200", Shape { max_k: 1024, ..BATCH }, 8 * 256, same, D128),
    // Hopper's kernel does not take these pages. Portable kernels pay if most sequences have one query.
    ("h200", Shape { page: Some(1), ..BATCH }, 8 * 32, same, D128),
    ("h200", Shape { page: Some(1), ..BATCH }, 8 * 32 + 1, same, PORTABLE),
    ("h200", SINGLE, 256, same, D128),
    // In the first case, every sequence may have many queries. The second case has one sequence. In the third
    // case, splits are chunks.
    ("l4", BATCH, 8 * 512, same, PORTABLE),
    ("l4", Shape { batch: 1, ..BATCH }, 300, same, PORTABLE),
    ("l4", Shape { batch: 1, queries: 5, ..BATCH }, 5, same, PORTABLE),
    ("l4", BATCH, 1000, |d| d.splits(Splits::CHUNK), PORTABLE),
    ("l4", BATCH, 1000, |d| d.splits(Splits::Exactly(1)), PORTABLE),
    // In these cases, there are more query heads than a block has rows, or more sequences than decode kernels
    // can count.
    ("l4", Shape { heads: [17, 1], ..BATCH }, 1000, same, PORTABLE),
    ("l4", Shape { batch: 4097, queries: 4, max_k: 64, ..BATCH }, 5000, same, PORTABLE),
    // The kernels lack these masks, scores and head dims.
    ("l4", BATCH, 1000, |d| d.mask(Mask::Window { left: Some(99), right: Some(0) }),
        "paged_f16_d128_local_128x32"),
    ("l4", BATCH, 1000, |d| d.softcap(30.0), "paged_f16_d128_local_128x32"),
    ("l4", BATCH, 1000, |d| d.sinks(Sinks { address: 9 * FAR, elements: 32 }),
        "paged_f16_d128_local_sink_128x32"),
    ("l4", BATCH, 1000, |d| d.alibi(AlibiSlopes::new(8 * FAR, 32)), "paged_f16_d128_local_128x32"),
    ("l4", BATCH, 1000, |d| d.mask(Mask::Chunked { chunk: 9 }), "paged_f16_d128_chunked_128x48"),
    ("l4", Shape { head_dim: 136, ..BATCH }, 1000, same, "paged_f16_d256_causal_64x32"),
    // The request names the kernel, so the batch does not matter.
    ("h200", BATCH, 8 * 512, |d| d.config(D128), D128),
    ("l4", Shape { batch: 1, ..BATCH }, 300, |d| d.splits(Splits::CHUNK).config(D128), D128),
];

/// Requests on an L4 whose sequences prefill kernels take, with words of the reason.
#[rustfmt::skip]
const REASONS: &[(Shape, usize, Change, &str)] = &[
    (BATCH, 8 * 512, same, "many in every sequence"),
    (BATCH, 1000, |d| d.splits(Splits::CHUNK), "batch-invariant splits"),
    (BATCH, 1000, |d| d.splits(Splits::Exactly(1)), "one split"),
    (BATCH, 1000, |d| d.alibi(AlibiSlopes::new(8 * FAR, 32)), "sinks, slopes, a bias"),
    (Shape { batch: 4097, queries: 4, max_k: 64, ..BATCH }, 5000, same, "more than 4096 sequences"),
    (Shape { heads: [17, 1], ..BATCH }, 1000, same, "no decode kernel of mixed batches takes"),
    (BATCH, 1000, |d| d.softcap(30.0), "no decode kernel of mixed batches takes"),
];

#[test]
fn reasons_against_a_mixed_batch() {
    for (shape, rows, change, words) in REASONS {
        let request = change(request(*shape, *rows)).scratch(Scratch::Fastest);
        let plan = plan(&request, card("l4")).unwrap_or_else(|e| panic!("{e}: {request:?}"));
        assert!(plan.reason().contains(words), "{words} {request:?}: {}", plan.reason());
    }
}

#[test]
fn plans() {
    for (name, shape, rows, change, symbol) in PLANS {
        let request = change(request(*shape, *rows)).scratch(Scratch::Fastest);
        let plan = plan(&request, card(name)).unwrap_or_else(|e| panic!("{e}: {request:?}"));
        assert_eq!(plan.contract().symbol, *symbol, "{name} {request:?}");
        let words = match (symbol.starts_with("mixed"), request.config) {
            (true, None) => "the sequences of few queries",
            (_, Some(_)) => "names this kernel",
            (false, None) => "",
        };
        assert!(plan.reason().contains(words), "{name} {request:?}: {}", plan.reason());
    }
}

/// Requests that the kernels do not solve, with words of the refusal.
#[rustfmt::skip]
const REFUSED: &[(Shape, Change, &[&str])] = &[
    (Shape { packed: false, queries: 1, ..BATCH }, same, &["config", D128, "varlen queries"]),
    (Shape { heads: [17, 1], ..BATCH }, same,
        &["config", D128, "at most 16 query heads per key head, and the request has 17"]),
    (Shape { head_dim: 136, ..BATCH }, same, &["config", D128, "head_dim 136"]),
    (Shape { head_dim: 64, ..BATCH }, |d| d.config("mixed_few_bf16_d64_causal_16_rows"), &["config", "f16"]),
    (BATCH, |d| d.softcap(30.0), &["config", D128, "it is a kernel for mask causal", "softcap 30"]),
    (BATCH, |d| d.sinks(Sinks { address: 9 * FAR, elements: 32 }),
        &["config", D128, "it takes no sinks", "causal, sinks"]),
    (BATCH, |d| d.splits(Splits::Exactly(2)), &["Exactly(2)", "only decode kernels support splits"]),
    // Only the decode kernel's name stands for all kernels of the launch.
    (BATCH, |d| d.config("mixed_many_f16_d128_causal_128x48"), &["config", "mixed_many"]),
];

#[test]
fn named_kernels_that_do_not_solve_the_problem() {
    for (shape, change, words) in REFUSED {
        let request = match shape.packed {
            true => request(*shape, 1000),
            false => decode(*shape),
        };
        let error = plan(&change(request.config(D128)), card("l4")).expect_err("refused").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}, should have {words:?}");
    }
}

/// The named decode kernel makes the splits that the request states.
#[test]
fn splits_of_a_named_kernel() {
    // A place has 4 queries of 32 heads, each with 128 columns and an LSE.
    let place = 4 * 32 * (128 + 1) * 4;
    // A sequence of 4096 keys has 16 chunks.
    for (splits, places) in [(Splits::Exactly(1), 0), (Splits::Chunk(256), 8 * 16)] {
        let named = request(BATCH, 1000).config(D128).splits(splits).scratch(Scratch::Fastest);
        let plan = plan(&named, card("h200")).expect("valid");
        assert_eq!(plan.scratch_bytes().workspace, places * place, "{splits:?}");
    }
}

/// A launch has a decode kernel and a prefill kernel. If there are no counters, decode's combine kernel runs
/// between them.
#[test]
fn kernels_of_a_launch() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("l4"));
    let d = request(BATCH, 1000).scratch(Scratch::Fastest);
    let plan = attention.plan(&d)?;
    let ScratchBytes { workspace, counters } = plan.scratch_bytes();
    assert!(workspace > 0 && counters == 8 * 8 * 4, "{workspace} {counters}");
    let combine = "mixed_combine_f16_d128";
    let many = "mixed_many_f16_d128_causal_128x48";
    let workspace = Workspace { address: 10 * FAR, bytes: workspace };
    let with = |counters| Scratch::Memory { workspace, counters };
    let own = Counters { address: 11 * FAR, bytes: counters };
    attention.load(&plan)?;
    assert_eq!(attention.driver().loaded(), [D128, combine, many, PORTABLE]);
    for (scratch, kernels) in [(with(Some(own)), vec![D128, many]), (with(None), vec![D128, combine, many])] {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, &d.scratch(scratch), &7) }?;
        let launches = attention.driver().launches();
        let launches = &launches[launches.len() - kernels.len()..];
        let symbols: Vec<_> = launches.iter().map(|launch| &*launch.symbol).collect();
        assert_eq!(symbols, kernels);
        // There are 1000 rows in tiles of 128, a partial tile of each sequence, and 32 heads.
        assert_eq!(launches.last().map(|launch| launch.grid), Some([(7 + 8) * 32, 1, 1]));
    }
    // On Hopper, the prefill kernel takes the same sequences.
    let hopper = Attention::new(FakeDriver::new("h200"));
    let plan = hopper.plan(&d)?;
    hopper.load(&plan)?;
    assert_eq!(hopper.driver().loaded()[..3], [D128, combine, HOPPER]);
    let ScratchBytes { workspace: bytes, counters } = plan.scratch_bytes();
    let workspace = Workspace { address: 10 * FAR, bytes };
    let own = Counters { address: 11 * FAR, bytes: counters };
    // SAFETY: the fake driver runs nothing.
    unsafe { hopper.launch(&plan, &d.scratch(Scratch::Memory { workspace, counters: Some(own) }), &7) }?;
    let launches = hopper.driver().launches();
    let symbols: Vec<_> = launches.iter().map(|launch| &*launch.symbol).collect();
    assert_eq!(symbols, [D128, HOPPER]);
    // Without a workspace, the plan does not split, and its reason says so.
    let plan = attention.plan(&request(BATCH, 1000))?;
    assert_eq!((plan.contract().symbol, plan.scratch_bytes().workspace), (D128, 0));
    assert!(plan.reason().contains("without a workspace"), "{}", plan.reason());
    Ok(())
}
