//! Tests the planner at the limits of sizes and cards. The planner must return a valid launch or an error,
//! and never panic.
use ferroflash::{plan::*, request::*, *};

/// Returns a view with a separate buffer, which has room for every element.
fn view(n: u64, shape: [usize; 4], strides: [i64; 4]) -> TensorView {
    TensorView::new(n << 50, 1 << 48, DType::F16, shape, strides)
}

/// Plans with the full workspace. CUDA must accept the grid.
#[track_caller]
fn check(name: &str, f: &AttentionRequest<'_>, card: &Capabilities) {
    let offered = if f.scratch == Scratch::None { f.scratch(Scratch::Fastest) } else { *f };
    let plan = plan(&offered, card).unwrap_or_else(|e| panic!("{name}: {e}"));
    let [x, y, z] = plan.grid();
    let taken = (1..1 << 31).contains(&x) && (1..1 << 16).contains(&y) && (1..1 << 16).contains(&z);
    assert!(taken, "{name}: {:?} of {}", plan.grid(), plan.contract().symbol);
}

fn h200() -> &'static Capabilities {
    Capabilities::profile("h200").expect("known")
}

/// Every key is the same row of memory.
#[test]
fn the_longest_sequence() {
    let (q, k) = ([1, MAX_SEQLEN, 1, 8], [0, 0, 0, 1]);
    let [q, o] = [1, 4].map(|n| view(n, q, [0, 8, 0, 1]));
    let [k, v] = [2, 3].map(|n| view(n, [1, MAX_SEQLEN, 1, 8], k));
    for mask in [Mask::Full, Mask::Causal, Mask::Window { left: Some(u32::MAX), right: Some(0) }] {
        check(&format!("{mask:?}"), &AttentionRequest::dense(q, k, v, o).mask(mask), h200());
    }
}

#[test]
fn the_largest_batch() {
    let forward = |batch: usize| {
        let [q, o] = [1, 4].map(|n| view(n, [batch, 1, 1, 8], [8, 8, 8, 1]));
        let [k, v] = [2, 3].map(|n| view(n, [batch, 1, 1, 8], [0, 8, 8, 1]));
        AttentionRequest::dense(q, k, v, o)
    };
    let most = (1usize << 31) - 1;
    for mask in [Mask::Full, Mask::Causal] {
        check(&format!("{mask:?}"), &forward(most).mask(mask), h200());
        let refused = plan(&forward(most + 1).mask(mask), h200()).expect_err("too many").to_string();
        assert!(refused.contains("less than 2^31 blocks"), "{refused}");
    }
}

/// The launch has the largest number of tiles of 128 queries. A portable kernel with tiles of 64 would exceed
/// the limit.
#[test]
fn a_problem_that_no_portable_kernel_takes() {
    for packed in [false, true] {
        let (rows, heads, head_dim) = (MAX_SEQLEN - 4096, 256, 256);
        let row = (heads * head_dim) as i64;
        let views = [1, 2, 3, 4].map(|n| view(n, [1, rows, heads, head_dim], [0, row, head_dim as i64, 1]));
        let [q, k, v, o] = views;
        let starts = Index::new(5 << 50, 2);
        let (queries, keys) = (VarlenQueries::new(1, starts, rows), VarlenKeys::new(starts, rows));
        let f = match packed {
            false => AttentionRequest::dense(q, k, v, o),
            true => AttentionRequest::varlen(q, k, v, o, queries, keys),
        };
        let f = f.mask(Mask::Window { left: Some(255), right: Some(0) });
        let made = plan(&f, h200()).unwrap_or_else(|e| panic!("packed {packed}: {e}"));
        assert_eq!(supports(&f.problem(), h200()), Ok(made.contract()), "packed {packed}");
        assert!(made.contract().symbol.starts_with("hopper"), "{}", made.contract().symbol);
        check(&format!("packed {packed}"), &f, h200());
    }
}

/// Every query is the same row of memory. A latent cache takes any number of rows per sequence.
#[test]
fn more_rows_on_a_latent_cache_than_a_launch_counts() {
    for heads in [2, 3, 4, 8] {
        let queries = |n, columns, row| view(n, [1, MAX_SEQLEN, heads, columns], [0, row, columns as i64, 1]);
        let rows = TensorView::bshd(2 << 50, 1 << 48, DType::F16, [1, 64, 1, 576]);
        let cache = KvCache::dense(KvPages::latent(rows, 512), Index::new(3 << 50, 1));
        let o = queries(4, 512, heads as i64 * 512);
        let f = AttentionRequest::cached(queries(1, 576, 0), cache, o).scale(0.1).scratch(Scratch::Fastest);
        if heads == 2 {
            check("rows in 31 bits", &f, h200());
            continue;
        }
        let refused = plan(&f, h200()).map(drop).expect_err("too many rows");
        let words = format!("not supported: {} rows (queries x query heads", heads * MAX_SEQLEN);
        assert!(refused.to_string().contains(&words), "{refused}");
    }
}

/// If the offered workspace is too small, the plan must not use it, whatever its address is.
#[test]
fn a_workspace_that_ends_where_addresses_do() {
    let [q, o] = [1, 4].map(|n| view(n, [1, 128, 32, 128], [0, 4096, 128, 1]));
    let [k, v] = [2, 3].map(|n| view(n, [1, 8192, 32, 128], [0, 4096, 128, 1]));
    let f = AttentionRequest::dense(q, k, v, o);
    for card in ["h200", "b200"] {
        let card = Capabilities::profile(card).expect("known");
        let room = Workspace { address: u64::MAX - (1 << 20) - 15, bytes: 1 << 20 };
        let plan = plan(&f.scratch(Scratch::Fastest), card).expect("valid");
        assert!(plan.scratch_bytes().workspace > room.bytes, "{} splits", plan.contract().symbol);
        check(&card.name, &f.scratch(Scratch::Memory { workspace: room, counters: None }), card);
    }
}

/// A driver may report such values for an unknown card.
#[test]
fn cards_that_say_they_have_nothing() {
    let tensors = |seqlen_q: usize, seqlen_k: usize| {
        let [q, o] = [1, 4].map(|n| view(n, [1, seqlen_q, 1, 64], [0, 64, 64, 1]));
        let [k, v] = [2, 3].map(|n| view(n, [1, seqlen_k, 1, 64], [0, 64, 64, 1]));
        AttentionRequest::dense(q, k, v, o)
    };
    type Take = fn(&mut Capabilities);
    let without: [(&str, Take); 4] = [
        ("shared memory", |card| card.smem_per_sm = 0),
        ("registers", |card| card.registers_per_sm = 0),
        ("a cache", |card| card.l2_bytes = 0),
        ("memory", |card| card.memory_bytes = 0),
    ];
    for (what, take) in without {
        for (seqlen_q, seqlen_k) in [(64, 8192), (4096, 4096), (1, 1)] {
            for mask in [Mask::Full, Mask::Causal] {
                let mut card = h200().clone();
                take(&mut card);
                check(&format!("without {what}"), &tensors(seqlen_q, seqlen_k).mask(mask), &card);
            }
        }
    }
}
