//! Tests that table, planner and cases agree. On every card, the planner finds an entry for every problem.
//! The planner accepts every entry by name, for the cases of this entry.
use ferroflash::kernels::{ATTENTION, AttnInfo, Class, Isa, MaskKind, entries, entry, plain};
use ferroflash::plan::{Problem, supports};
use ferroflash::request::{LseView, Mask, Scratch};
use ferroflash::spec::TileScheduler;
use ferroflash::{Capabilities, DType, plan};
use reference::{Binder, Case, edges, grid, soak};

fn profiles() -> impl Iterator<Item = &'static Capabilities> {
    Capabilities::PROFILES.iter().map(|(_, capabilities)| capabilities)
}

fn problems() -> impl Iterator<Item = Problem> {
    let masks = [Mask::Full, Mask::Causal, Mask::Window { left: Some(100), right: Some(0) }];
    let sizes = [(1, 1, 1), (1, 128, 8), (2, 2048, 16), (64, 512, 32)];
    let dtypes = [DType::F16, DType::Bf16];
    dtypes.into_iter().flat_map(move |dtype| {
        (8..=512).step_by(8).flat_map(move |head_dim| {
            sizes.into_iter().flat_map(move |(batch, seqlen, heads)| {
                masks.map(|mask| Problem::new(dtype, batch, seqlen, heads, head_dim).mask(mask))
            })
        })
    })
}

#[test]
fn every_problem_has_an_entry_that_fits_on_every_card() {
    for capabilities in profiles() {
        for problem in problems() {
            let kernel = supports(&problem, capabilities).unwrap_or_else(|e| panic!("{problem}: {e}"));
            let entry = entry(kernel.symbol).expect("in the table");
            assert_eq!(entry.dtype, problem.dtype, "{problem}");
            assert!(entry.head_dim as usize >= problem.head_dim, "{problem}: {}", entry.contract.symbol);
            assert!(
                entry.contract.smem_bytes <= capabilities.smem_per_block,
                "{problem}: {}",
                entry.contract.symbol
            );
            let smaller = plain(Isa::Sm80, Class::Dense)
                .any(|e| (problem.head_dim as u32..entry.head_dim).contains(&e.head_dim));
            // TMA is slow on rows that do not start at multiples of 32 bytes, unless panels are whole.
            let whole = entry.has_maps() && entry.head_dim == 128 && [72, 88].contains(&problem.head_dim);
            assert!(!smaller || whole, "{problem}: {} pads more than it must", entry.contract.symbol);
        }
    }
}

/// Plans `case` on an H200, which holds every entry, and requests `entry` by name.
#[track_caller]
fn check_case(case: &Case, entry: &AttnInfo) {
    let (memory, problem) = (case.to_measure(), case.problem());
    let mut tensors = memory.request(&mut Binder::at(None, None), 4 << 32, 5 << 32);
    let maxima = tensors.lse.filter(|_| case.rows.max_logits);
    tensors.max_logits = maxima.map(|lse| LseView { address: 7 << 32, ..lse });
    let forward = tensors.config(entry.contract.symbol).scratch(Scratch::workspace(6 << 32, 1 << 32));
    let h200 = Capabilities::profile("h200").expect("a known card");
    let plan = plan(&forward, h200).unwrap_or_else(|e| panic!("{}: {case}: {e}", entry.contract.symbol));
    assert_eq!(plan.contract(), &entry.contract);
    let Problem { batch, heads_q, seqlen_q, .. } = problem;
    let head_shares = heads_q * entry.shares() as usize;
    let tiles = seqlen_q.div_ceil(entry.tile_m as usize) * batch * head_shares;
    let resident = (h200.sms * h200.blocks_per_sm(plan.contract())) as usize;
    let workspace = plan.scratch_bytes().workspace as usize;
    let slices = workspace / (4 * (entry.head_dim as usize + 1) * batch * heads_q * seqlen_q);
    let persistent = entry.scheduler == TileScheduler::Persistent;
    let blocks = match (persistent, entry.is_varlen(), entry.splits) {
        (false, false, false) => tiles,
        (true, false, false) => {
            // Blocks take pairs of tiles, unless one block would get more tiles as pairs than as single
            // tiles.
            let grows = matches!(entry.mask, MaskKind::Causal | MaskKind::Prefix | MaskKind::Chunked);
            let paired = entry.has_maps() && grows && tiles.is_multiple_of(2);
            let pairs = (tiles / 2).min(resident);
            if paired && plan.grid()[0] as usize == pairs { pairs } else { tiles.min(resident) }
        }
        (false, false, true) => tiles * slices,
        (true, false, true) => (tiles * slices).min(resident),
        // Each sequence gets the number of tiles of the longest sequence, or one additional tile for each
        // sequence that does not fill its last tile.
        (false, true, _) => {
            let rows = problem.varlen.expect("the case is varlen")[0];
            tiles.min((rows / entry.tile_m as usize + batch) * head_shares)
        }
        // Each block takes two of these tiles. With equal lengths, the grid has one block per SM instead.
        (true, true, _) => {
            let [rows, keys] = problem.varlen.expect("the case is varlen");
            let equal = [rows, keys] == [seqlen_q, problem.seqlen_k].map(|most| batch * most);
            let tiles = tiles.min((rows / entry.tile_m as usize + batch) * head_shares);
            if equal { (h200.sms as usize).min(tiles) } else { tiles.div_ceil(2) }
        }
    };
    assert_eq!(plan.grid().map(|n| n as usize), [blocks, 1, 1], "{}: {case}", entry.contract.symbol);
}

#[test]
fn every_case_is_solved_by_the_entry_that_it_is_for() {
    for entry in entries() {
        for case in edges(entry, 1).iter().chain(&[soak(entry, 1)]) {
            check_case(case, entry);
        }
    }
    // These long cases do not depend on the entry.
    for case in grid(&ATTENTION[0], 1).iter().filter(|case| case.max_k < 600) {
        check_case(case, &ATTENTION[0]);
    }
}
