//! Block masks: kernels that take listed key blocks only, against f64; lists that host and device make of one
//! mask function; lists of garbage. Needs the device compiler.
#[path = "block_masks/attention.rs"]
mod attention;

use attention::{BOUNDS, Buffer, Card, Front, HEADS, Seq, attend, card, module, upload, variant, variant_of, words};
use ferroflash::Error;
use ferroflash::block_mask::{BlockMaskKernel, BlockMaskRequest};
use ferroflash::driver::Harness;
use ferroflash::request::{Alignment, Index};
use ferroflash::spec::{
    And, AttnKernel, BlockMask, BlockSparse, CreatesBlockMask, FastDiv, Full, Integers, MaskMarker,
};
use ferroflash::variant::Variant;
use ferroflash_tests::clamps::without_each_clamp;
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

/// The document of each position: two documents take turns, others are contiguous.
fn document(p: i32) -> u32 {
    match p {
        0..150 => p as u32 / 10 % 2,
        150..310 => 2,
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
/// A list without one block, and a partial block among the full ones, do not.
fn check<K, M: MaskFn>(
    symbol: &'static str,
    (front, lengths, heads): (Front, &[Seq], u32),
    (params, copies): (impl Fn(&Card) -> (Option<Buffer>, M::Params), impl Fn(u64) -> Vec<Copied>),
    sees: &dyn Fn(usize, usize, i32, i32) -> bool,
) where
    K: AttnKernel<Mask = BlockSparse<M>>,
    M: 'static,
{
    let card = card(Options::default());
    let variant = variant::<K>(symbol);
    let (buffer, params) = params(&card);
    let address = buffer.as_ref().map_or(0, |buffer| card.driver().address(buffer));
    let tile = [K::INFO.tile_m, K::INFO.tile_n];
    let lists = exact::with_memory(copies(address), || {
        create_block_mask::<M>(&params, &sequences(lengths), heads, tile)
    });
    let off = |lists: &BlockLists| {
        let lists = Lists::upload(&card, lists);
        let made = attend(&card, front, lengths, variant, And::new(params, lists.mask), false);
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
    // The lists of two tiles change places.
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

/// Lists of random blocks: `percent` of them, which need no mask but at the end of the keys.
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
    fn check<K: AttnKernel<Mask = BlockSparse<Full>>>(symbol: &'static str, splits: bool) {
        let card = card(Options::default());
        let ([queries, keys], tile) = ([200, 461], [K::INFO.tile_m, K::INFO.tile_n]);
        let shape = [2, HEADS as u32, 200u32.div_ceil(tile[0]), 461u32.div_ceil(tile[1])];
        for percent in [10, 30, 60, 100] {
            let lists = random_lists(shape, tile, keys, percent);
            let on_card = Lists::upload(&card, &lists);
            let params = And::new((), on_card.mask);
            let lengths = [[queries, keys]; 2];
            let made = attend(&card, Front::Dense, &lengths, variant::<K>(symbol), params, splits);
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
    check::<sparse_full::Kernel>("sparse_full", false);
    check::<sparse_full_shared::Kernel>("sparse_full_shared", false);
    check::<sparse_full_one_stage::Kernel>("sparse_full_one_stage", false);
    check::<sparse_full_split::Kernel>("sparse_full_split", true);
}

/// A kernel makes the lists that the host makes of the same function.
fn check_made<K: CreatesBlockMask, M: MaskFn<Params = K::Variant>>(
    symbol: &'static str,
    request: impl Fn(&Card) -> (Vec<Buffer>, BlockMaskRequest),
    (params, copies): (impl Fn(&Card) -> (Option<Buffer>, M::Params), impl Fn(u64) -> Vec<Copied>),
    sequences: &[exact::Sequence],
) {
    let card = card(Options::default());
    let (_memory, request) = request(&card);
    let (buffer, params) = params(&card);
    let address = buffer.as_ref().map_or(0, |buffer| card.driver().address(buffer));
    let of = module(symbol);
    let kernel = BlockMaskKernel::<K, _>::new(card.driver(), &of.contract, &of.text).expect("loads");
    let room = BlockMaskKernel::<K, ferroflash::driver::SimDriver>::room(&request).expect("sizes");
    let memory = room.map(|integers| upload(&card, &vec![0xff; integers * 4]));
    let [tiles, blocks] = [0, 1].map(|i| Index::new(memory[i].1, room[i] as u64));
    let stream = card.driver().stream().expect("a stream");
    // SAFETY: the buffers live until the launch has run, and the PTX was compiled from the kernel's type.
    let mask = unsafe { kernel.launch(card.driver(), &request, params, [tiles, blocks], &stream) };
    let mask = mask.expect("launches");
    card.driver().synchronize(&stream).unwrap_or_else(|error| panic!("{symbol}: {error}"));
    let download = |i: usize| {
        let mut bytes = vec![0; room[i] * 4];
        card.driver().download(&memory[i].0, &mut bytes).expect("its size");
        bytes.chunks_exact(4).map(|x| u32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
    };
    let made = BlockLists { tiles: download(0), blocks: download(1), shape: mask.shape, tile: mask.tile };
    let heads = mask.shape[1];
    let host = exact::with_memory(copies(address), || {
        create_block_mask::<M>(&params, sequences, heads, mask.tile)
    });
    assert_eq!(made.shape, host.shape, "{symbol}");
    assert!(host.counts().iter().sum::<usize>() > 0, "{symbol}: no blocks");
    for (tile, (made, host)) in made.lists().zip(host.lists()).enumerate() {
        assert_eq!(made, host, "{symbol}: tile {tile}");
    }
}

#[test]
fn device_and_host_make_equal_lists() {
    let dense = |sequences, heads, lengths: [usize; 2]| {
        move |_: &Card| (vec![], BlockMaskRequest::new(sequences, heads, lengths))
    };
    let of = (document_params, document_copies);
    let both = sequences(&[[400, 450]; 2]);
    check_made::<create_documents::Kernel, Documents>(
        "create_documents",
        dense(2, 1, [400, 450]),
        of,
        &both,
    );
    let top_left: Vec<_> = both.iter().map(|of| exact::Sequence { shift: 0, ..*of }).collect();
    let aligned =
        |_: &Card| (vec![], BlockMaskRequest::new(2, 1, [400, 450]).alignment(Alignment::TopLeft));
    check_made::<create_documents::Kernel, Documents>("create_documents", aligned, of, &top_left);
    check_made::<create_window::Kernel, HeadWindow>(
        "create_window",
        dense(1, HEADS, [300, 330]),
        (|_: &Card| (None, 40), no_copies),
        &sequences(&[[300, 330]]),
    );
    check_made::<create_neighbours::Kernel, Neighbours>(
        "create_neighbours",
        dense(1, 1, [324, 324]),
        (|_: &Card| (None, neighbours()), no_copies),
        &sequences(&[[324, 324]]),
    );
    // Varlen queries and keys, of which not all are valid. Offsets and lengths of garbage are clamped.
    let varlen = |card: &Card, starts: [&[u32]; 2], used: &[u32]| {
        let [(a, q), (b, k), (c, used)] = [starts[0], starts[1], used].map(|list| words(card, list));
        let index = |of: Integers| Index::new(of.base, of.count.into());
        let request = BlockMaskRequest::new(used.count as usize, 1, [300, 400]);
        let request = request.varlen(Some(index(q)), Some(index(k))).seqused_k(index(used));
        (vec![a, b, c], request)
    };
    check_made::<create_documents::Kernel, Documents>(
        "create_documents",
        |card| varlen(card, [&[0, 150, 150, 450], &[0, 180, 200, 600]], &[170, 20, 1000]),
        of,
        &sequences(&[[150, 170], [0, 20], [300, 400]]),
    );
    check_made::<create_documents::Kernel, Documents>(
        "create_documents",
        |card| varlen(card, [&[0, u32::MAX, 7, 3], &[5, 1 << 31, 0, 1000]], &[u32::MAX, 20, 350]),
        of,
        &sequences(&[[300, 0], [0, 0], [0, 350]]),
    );
}

/// Lists of garbage in memory of these sizes.
fn garbage(seed: u64, sizes: [usize; 2]) -> [Vec<u32>; 2] {
    const SOME: [u32; 12] = [0, 1, 2, 3, 4, 5, 7, 8, 100, i32::MAX as u32, 1 << 31, u32::MAX];
    let mut random = random(seed, SOME.len() as u32);
    sizes.map(|size| (0..size).map(|_| SOME[random() as usize]).collect())
}

/// The results of a kernel with lists of garbage.
fn with_garbage<M: MaskMarker<Params = And<P, BlockMask>>, P: Copy>(
    card: &Card,
    (front, lengths): (Front, &[Seq]),
    (variant, tile): (&'static Variant<M>, [u32; 2]),
    params: P,
    seed: u64,
) -> Result<Vec<u32>, Error> {
    let longest = |of: usize| lengths.iter().map(|each| each[of]).max().expect("a sequence") as u32;
    let blocks = |of: usize| longest(of).div_ceil(tile[of]);
    let shape = [lengths.len() as u32, HEADS as u32, blocks(0), blocks(1)];
    let tiles = 4 * (shape[0] * shape[1] * shape[2]) as usize;
    let [tiles, blocks] = garbage(seed, [tiles, [0, 1, 9, 40][seed as usize % 4]]);
    let lists = Lists::upload(card, &BlockLists { tiles, blocks, shape, tile });
    let made = attend(card, front, lengths, variant, And::new(params, lists.mask), false)?;
    assert!(made.o.iter().all(|x| x.abs() <= 1.0), "a mean out of range");
    Ok(made.bits())
}

const DENSE: &[Seq] = &[[200, 461], [200, 461]];
const PAGED: &[Seq] = &[[140, 150], [140, 333]];

#[test]
fn lists_of_garbage_stay_within_the_tensors() {
    let card = card(Options::default());
    let (_documents, documents) = words(&card, &documents());
    for seed in 0..8 {
        let full = |symbol, variant, tile| {
            let made = with_garbage(&card, (Front::Dense, DENSE), (variant, tile), (), seed);
            made.unwrap_or_else(|error| panic!("{symbol}, seed {seed}: {error}"));
        };
        full("sparse_full", variant::<sparse_full::Kernel>("sparse_full"), [128, 64]);
        full("sparse_full_shared", variant::<sparse_full_shared::Kernel>("sparse_full_shared"), [32, 64]);
        let one_stage = variant::<sparse_full_one_stage::Kernel>("sparse_full_one_stage");
        full("sparse_full_one_stage", one_stage, [64, 32]);
        let varlen = variant::<sparse_documents_varlen::Kernel>("sparse_documents_varlen");
        let paged = variant::<sparse_documents_paged::Kernel>("sparse_documents_paged");
        let lengths: &[Seq] = &[[150, 150], [7, 90], [0, 30], [200, 233]];
        for (front, lengths, variant) in [(Front::Varlen, lengths, varlen), (Front::Cached, PAGED, paged)] {
            let made = with_garbage(&card, (front, lengths), (variant, [128, 64]), documents, seed);
            made.unwrap_or_else(|error| panic!("{variant:?}, seed {seed}: {error}"));
        }
    }
}

#[test]
fn a_clamp_of_a_list_that_is_missing_is_noticed() {
    let run = |text: &str, seed: u64| {
        let card = card(Options { budget: 20_000_000, max_reports: 1, ..Options::default() });
        let variant = variant_of::<sparse_full::Kernel>("sparse_full", text);
        with_garbage(&card, (Front::Dense, DENSE), (variant, [128, 64]), (), seed)
    };
    let text = &module("sparse_full").text;
    let right: Vec<_> = (0..8).map(|seed| run(text, seed).expect("runs")).collect();
    let clamps = without_each_clamp(text, &["/block_list.rs"]);
    let lines: std::collections::BTreeSet<_> = clamps.iter().map(|clamp| &clamp.clamp).collect();
    assert!(lines.len() >= 5, "{lines:?}");
    for clamp in &clamps {
        let changes = |seed: usize| run(&clamp.text, seed as u64).ok().as_ref() != Some(&right[seed]);
        assert!((0..8).any(changes), "{clamp}");
    }
}
