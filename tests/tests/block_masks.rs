//! Block masks: compares kernels that take only listed key blocks with f64, compares the lists that host and
//! device make from one mask function, and launches with lists of garbage. Needs the device compiler.
#[path = "block_masks/attention.rs"]
mod attention;
#[path = "block_masks/garbage.rs"]
mod garbage;
#[path = "block_masks/made.rs"]
mod made;
#[path = "block_masks/refused.rs"]
mod refused;

use attention::{BOUNDS, Buffer, Card, Front, HEADS, Seq, attend, card, card_for, variant, words};
use ferroflash::driver::Harness;
use ferroflash::spec::{And, AttnKernel, BlockMask, BlockSparse, FastDiv, Full, Integers};
use own_kernels::block_sparse::*;
use own_kernels::exact::{self, BlockKind, BlockLists, Copied, MaskFn, create_block_mask};
use ptx_sim::Options;

/// Lists in device memory.
struct Lists {
    mask: BlockMask,
    _memory: [Buffer; 2],
}

impl Lists {
    fn upload(card: &Card, lists: &BlockLists) -> Self {
        let [(tiles, a), (blocks, b)] = [&lists.tiles, &lists.blocks].map(|list| words(card, list));
        Lists { mask: lists.at(a.base, b.base), _memory: [tiles, blocks] }
    }
}

/// The sequences as masks see them on the host.
fn sequences(lengths: &[Seq]) -> Vec<exact::Sequence> {
    let of = |(index, [queries, keys]): (usize, &Seq)| {
        exact::sequence(index as u32, 0, [*queries as u32, *keys as u32], 0.125)
    };
    lengths.iter().enumerate().map(of).collect()
}

/// Numbers from 0 to `below - 1` that look random.
fn random(seed: u64, below: u32) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as u32) % below
    }
}

/// The document of each position: two documents take turns, a long one follows, then short ones.
fn document(p: i32) -> u32 {
    match p {
        0..100 => p as u32 / 10 % 2,
        100..400 => 2,
        _ => 3 + p as u32 / 40,
    }
}
fn documents() -> Vec<u32> {
    (0..512).map(document).collect()
}
fn sees_document(_: usize, _: usize, p: i32, k: i32) -> bool {
    k <= p && document(p) == document(k)
}
fn sees_window(_: usize, head: usize, p: i32, k: i32) -> bool {
    k <= p && k > p - (40 << head)
}
const IMAGE: i32 = 18;
fn sees_neighbour(_: usize, _: usize, p: i32, k: i32) -> bool {
    let near = |a: i32, b: i32| (a - b).abs() <= 3;
    near(p / IMAGE, k / IMAGE) && near(p % IMAGE, k % IMAGE)
}
fn neighbours() -> NeighboursParams {
    NeighboursParams { width: FastDiv::new(IMAGE as u32).expect("a divisor"), radius: 3 }
}

/// Kernel `K`, with the lists of its own mask function `M`, made on the host, gives the definition's results.
/// If a list lacks one block, or if a partial block is among the full blocks, the results differ.
fn check<K, M>(
    symbol: &'static str,
    (front, lengths, heads): (Front, &[Seq], u32),
    (params, copies): (impl Fn(&Card) -> (Option<Buffer>, M::Params), impl Fn(u64) -> Vec<Copied>),
    sees: &dyn Fn(usize, usize, i32, i32) -> bool,
) where
    K: AttnKernel<Mask = BlockSparse<M>>,
    M: MaskFn + 'static,
{
    let card = card_for(symbol, Options::default());
    let variant = variant::<K>(symbol);
    let (buffer, params) = params(&card);
    let address = buffer.as_ref().map_or(0, |buffer| card.driver().address(buffer));
    let tile = [K::INFO.tile_m, K::INFO.tile_n];
    let lists = exact::with_memory(copies(address), || {
        create_block_mask::<M>(&params, &sequences(lengths), heads, tile)
    });
    let off = |lists: &BlockLists| {
        let lists = Lists::upload(&card, lists);
        let made = attend(&card, front, lengths, variant, And::new(params, lists.mask));
        made.unwrap_or_else(|error| panic!("{symbol}: {error}")).off(lengths, sees)
    };
    let [o, lse] = off(&lists);
    let counts = lists.counts();
    println!("{symbol}: O is off by {o:.1e}, LSE by {lse:.1e}; full and partial blocks: {counts:?}");
    assert!(o <= BOUNDS[0] && lse <= BOUNDS[1], "{symbol}: O is off by {o}, LSE by {lse}");

    // One block of the last tile is missing.
    let mut wrong = lists.clone();
    let tile = wrong.tiles.chunks_exact_mut(4).rev().find(|tile| tile[3] > 1).expect("partial blocks");
    tile[3] -= 1;
    assert!(off(&wrong)[0] > 2.0 * BOUNDS[0], "{symbol}: the comparison finds no missing block");
    if counts[0] == 0 {
        return;
    }
    // In this case, the lists of two tiles are exchanged.
    let mut wrong = lists.clone();
    let (first, second) = wrong.tiles.split_at_mut(4);
    first.swap_with_slice(&mut second[..4]);
    assert!(off(&wrong)[0] > 2.0 * BOUNDS[0], "{symbol}: the comparison finds no swapped lists");
}

fn document_params(card: &Card) -> (Option<Buffer>, Integers) {
    let (buffer, integers) = words(card, &documents());
    (Some(buffer), integers)
}
fn document_copies(address: u64) -> Vec<Copied> {
    vec![Copied { address, bytes: documents().into_iter().flat_map(u32::to_le_bytes).collect() }]
}
fn no_copies(_: u64) -> Vec<Copied> {
    vec![]
}

#[test]
fn masks_with_lists_of_their_own_functions() {
    let of = (document_params, document_copies);
    check::<sparse_documents::Kernel, Documents>(
        "sparse_documents",
        (Front::Dense, &[[400, 400]; 2], 1),
        of,
        &sees_document,
    );
    check::<sparse_documents_varlen::Kernel, Documents>(
        "sparse_documents_varlen",
        (Front::Varlen, &[[150, 150], [7, 90], [0, 30], [300, 333]], 1),
        of,
        &sees_document,
    );
    check::<sparse_documents_paged::Kernel, Documents>(
        "sparse_documents_paged",
        (Front::Cached, &[[140, 150], [140, 333]], 1),
        of,
        &sees_document,
    );
    check::<sparse_window::Kernel, HeadWindow>(
        "sparse_window",
        (Front::Dense, &[[300, 330]; 2], HEADS as u32),
        (|_: &Card| (None, 40), no_copies),
        &sees_window,
    );
    check::<sparse_neighbours::Kernel, Neighbours>(
        "sparse_neighbours",
        (Front::Dense, &[[324, 324]], 1),
        (|_: &Card| (None, neighbours()), no_copies),
        &sees_neighbour,
    );
}

/// Lists of random blocks, with `percent` of all blocks. The blocks need a mask only at the end of the keys.
fn random_lists(shape: [u32; 4], tile: [u32; 2], keys: usize, percent: u32) -> BlockLists {
    let seen: Vec<_> = {
        let mut random = random(u64::from(percent), 100);
        (0..shape.iter().product()).map(|_| random() < percent).collect()
    };
    BlockLists::new(shape, tile, |[b, h, m, n]| {
        let at = ((b * shape[1] + h) * shape[2] + m) * shape[3] + n;
        match (seen[at as usize], (n + 1) * tile[1] > keys as u32, n % 3) {
            (false, ..) => BlockKind::Empty,
            (true, false, 0 | 1) => BlockKind::Full,
            (true, ..) => BlockKind::Partial,
        }
    })
}

#[test]
fn any_blocks() {
    fn check<K: AttnKernel<Mask = BlockSparse<Full>>>(symbol: &'static str) {
        let card = card_for(symbol, Options::default());
        let ([queries, keys], tile) = ([200, 461], [K::INFO.tile_m, K::INFO.tile_n]);
        let shape = [2, HEADS as u32, 200u32.div_ceil(tile[0]), 461u32.div_ceil(tile[1])];
        for percent in [10, 30, 60, 100] {
            let lists = random_lists(shape, tile, keys, percent);
            let on_card = Lists::upload(&card, &lists);
            let params = And::new((), on_card.mask);
            let lengths = [[queries, keys]; 2];
            let made = attend(&card, Front::Dense, &lengths, variant::<K>(symbol), params);
            let made = made.unwrap_or_else(|error| panic!("{symbol}: {error}"));
            let all: Vec<_> = lists.lists().collect();
            let [o, lse] = made.off(&lengths, &|b, h, p, k| {
                let m_block = (p as usize + queries - keys) / tile[0] as usize;
                let of = all[(b * HEADS + h) * shape[2] as usize + m_block];
                [of.full, of.partial].iter().any(|list| list.contains(&(k as u32 / tile[1])))
            });
            assert!(o <= BOUNDS[0] && lse <= BOUNDS[1], "{symbol}: O is off by {o}, LSE by {lse}");
        }
    }
    check::<sparse_full::Kernel>("sparse_full");
    check::<sparse_full_shared::Kernel>("sparse_full_shared");
    check::<sparse_full_one_stage::Kernel>("sparse_full_one_stage");
    check::<sparse_full_split::Kernel>("sparse_full_split");
    check::<sparse_full_hopper::Kernel>("sparse_full_hopper");
    check::<sparse_full_hopper_wide::Kernel>("sparse_full_hopper_wide");
}

#[test]
fn skipped_blocks_take_no_instructions() {
    // Eight documents of 64 tokens: each tile of 128 queries sees 2 of its 2, 4, 6 or 8 causal blocks.
    let of: Vec<u32> = (0..512).map(|p| p / 64).collect();
    let card = card(Options { coverage: true, ..Options::default() });
    let copies = |address| vec![Copied { address, bytes: of.iter().flat_map(|x| x.to_le_bytes()).collect() }];
    let (_of, params) = words(&card, &of);
    let lists = exact::with_memory(copies(params.base), || {
        create_block_mask::<Documents>(&params, &sequences(&[[512, 512]]), 1, [128, 64])
    });
    assert_eq!(lists.counts(), [0, 8]);
    let count = |symbol: &str| card.driver().take_coverage()[symbol].1;
    let on_card = Lists::upload(&card, &lists);
    let dense = variant::<own_kernels::block_sparse::documents::Kernel>("documents");
    attend(&card, Front::Dense, &[[512, 512]], dense, params).expect("runs");
    let all = count("documents");
    let sparse = variant::<sparse_documents::Kernel>("sparse_documents");
    attend(&card, Front::Dense, &[[512, 512]], sparse, And::new(params, on_card.mask)).expect("runs");
    let listed = count("sparse_documents");
    println!("warp instructions: {all} without lists, {listed} with lists");
    assert!(2 * listed < all, "{listed} of {all}: 8 of 20 blocks");
}
