//! Lists that a kernel makes on the device.
use super::attention::{Buffer, Card, HEADS, card, module, upload, words};
use super::{document_copies, document_params, neighbours, no_copies, sequences};
use ferroflash::block_mask::{BlockMaskKernel, BlockMaskRequest};
use ferroflash::driver::{Harness, SimDriver};
use ferroflash::request::{Alignment, Index};
use ferroflash::spec::{CreatesBlockMask, Integers};
use own_kernels::block_sparse::*;
use own_kernels::exact::{self, BlockKind, BlockLists, Copied, MaskFn, create_block_mask};
use ptx_sim::Options;

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
    let room = BlockMaskKernel::<K, SimDriver>::room(&request).expect("sizes");
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
    let host =
        exact::with_memory(copies(address), || create_block_mask::<M>(&params, sequences, heads, mask.tile));
    assert_eq!(made.shape[..3], host.shape[..3], "{symbol}");
    assert!(host.counts().iter().sum::<usize>() > 0, "{symbol}: no blocks");
    for (tile, (made, host)) in made.lists().zip(host.lists()).enumerate() {
        assert_eq!(made, host, "{symbol}: tile {tile}");
    }
}

#[test]
fn a_kernel_of_a_window_needs_the_window() {
    type Kernel = BlockMaskKernel<create_local::Kernel, SimDriver>;
    let card = card(Options::default());
    let of = module("create_local");
    let kernel = Kernel::new(card.driver(), &of.contract, &of.text).expect("loads");
    let request = BlockMaskRequest::new(1, 1, [300, 330]);
    let room = Kernel::room(&request).expect("sizes");
    let memory = room.map(|integers| upload(&card, &vec![0xff; integers * 4]));
    let lists = [0, 1].map(|i| Index::new(memory[i].1, room[i] as u64));
    let stream = card.driver().stream().expect("a stream");
    // SAFETY: the buffers live until the launch has run, and the PTX was compiled from the kernel's type.
    let launch = |request| unsafe { kernel.launch(card.driver(), &request, (), lists, &stream) };
    let error = launch(request).expect_err("no window").to_string();
    assert!(error.contains("window: None; the kernel's mask reads the window"), "{error}");
    let mask = launch(request.window([Some(70), Some(0)])).expect("launches");
    card.driver().synchronize(&stream).expect("runs");
    let read = |i: usize| {
        let mut bytes = vec![0; room[i] * 4];
        card.driver().download(&memory[i].0, &mut bytes).expect("its size");
        bytes.chunks_exact(4).map(|x| u32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
    };
    let made = BlockLists { tiles: read(0), blocks: read(1), shape: mask.shape, tile: mask.tile };
    let host = BlockLists::new(mask.shape, mask.tile, |[_, _, tile, n]| {
        let (queries, keys) = (tile * 128..(tile * 128 + 128).min(300), n * 64..(n * 64 + 64));
        let sees = |query: u32, k: u32| k < 330 && k <= query + 30 && k + 70 >= query + 30;
        let pairs = || queries.clone().flat_map(|query| keys.clone().map(move |k| (query, k)));
        match (pairs().any(|(q, k)| sees(q, k)), pairs().all(|(q, k)| sees(q, k))) {
            (false, _) => BlockKind::Empty,
            (true, all) => {
                if all {
                    BlockKind::Full
                } else {
                    BlockKind::Partial
                }
            }
        }
    });
    assert!(made.lists().eq(host.lists()) && host.counts()[1] > 0, "{:?}", made.counts());
}

#[test]
fn device_and_host_make_equal_lists() {
    let dense = |sequences, heads, lengths: [usize; 2]| {
        move |_: &Card| (vec![], BlockMaskRequest::new(sequences, heads, lengths))
    };
    let of = (document_params, document_copies);
    let both = sequences(&[[400, 450]; 2]);
    check_made::<create_documents::Kernel, Documents>("create_documents", dense(2, 1, [400, 450]), of, &both);
    let mut top_left = both.clone();
    top_left.iter_mut().for_each(|of| of.shift = 0);
    let aligned = |_: &Card| (vec![], BlockMaskRequest::new(2, 1, [400, 450]).alignment(Alignment::TopLeft));
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
        |card| varlen(card, [&[0, u32::MAX, 7, 307], &[5, 1 << 31, 0, 1000]], &[u32::MAX, 20, 350]),
        of,
        &sequences(&[[300, 0], [0, 0], [300, 350]]),
    );
}
