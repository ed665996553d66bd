//! Tests the refusal of block masks for another kernel or another request, and of memory that is too small.
use super::attention::{Front, HEADS, attend, card, module, variant, words};
use super::random_lists;
use ferroflash::Error;
use ferroflash::block_mask::{BlockMaskKernel, BlockMaskRequest};
use ferroflash::driver::{Harness, SimDriver};
use ferroflash::request::Index;
use ferroflash::spec::{And, BlockMask, Integers};
use own_kernels::block_sparse::*;
use ptx_sim::Options;

#[test]
fn block_masks_of_another_problem_are_refused() {
    let card = card(Options::default());
    let lists = random_lists([2, HEADS as u32, 2, 8], [128, 64], 461, 50);
    let [(_tiles, tiles), (_blocks, blocks)] = [&lists.tiles, &lists.blocks].map(|list| words(&card, list));
    let right = lists.at(tiles.base, blocks.base);
    let check = |front, mask: BlockMask, words: &[&str]| {
        let made = match front {
            Front::Cached => {
                let paged = variant::<sparse_documents_paged::Kernel>("sparse_documents_paged");
                attend(&card, front, &[[200, 461]; 2], paged, And::new(tiles, mask))
            }
            _ => {
                let full = variant::<sparse_full::Kernel>("sparse_full");
                attend(&card, front, &[[200, 461]; 2], full, And::new((), mask))
            }
        };
        let said = match made {
            Ok(_) => "nothing".to_owned(),
            Err(error @ Error::Invalid { .. }) => error.to_string(),
            Err(error) => panic!("{error}"),
        };
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    let with = |change: fn(&mut BlockMask)| {
        let mut mask = right;
        change(&mut mask);
        mask
    };
    let shared = with(|mask| mask.shape[..2].fill(1));
    // A KV cache may have room for more keys than its sequences have.
    for (front, mask) in [
        (Front::Dense, right),
        (Front::Dense, shared),
        (Front::Cached, right),
        (Front::Cached, with(|mask| mask.shape[3] = 5)),
    ] {
        check(front, mask, &["nothing"]);
    }
    for (change, said) in [
        (
            (|mask| mask.tile = [128, 32]) as fn(&mut BlockMask),
            ["block_mask.tile", "128 x 32", "plan again for these lists"],
        ),
        (|mask| mask.tile[0] = 64, ["block_mask.tile", "64 x 64", "128 queries and 64 keys"]),
        (|mask| mask.shape[0] = 3, ["block_mask.sequences", "3", "2, or 1"]),
        (|mask| mask.shape[1] = 0, ["block_mask.heads", "0", "2, or 1"]),
        (|mask| mask.shape[2] = 1, ["block_mask.tiles", "1", "200 queries per sequence, which are 2 tiles"]),
        (|mask| mask.shape[3] = 7, ["block_mask.blocks", "7", "461 keys per sequence, which are 8 blocks"]),
        (|mask| mask.tiles.count = 31, ["block_mask.tiles", "31 integers", "four integers for each"]),
        (|mask| mask.tiles.base += 2, ["block_mask.tiles", "0x", "multiple of 4"]),
        (|mask| mask.blocks.base = 0, ["block_mask.blocks", "0x0", "device address"]),
    ] {
        check(Front::Dense, with(change), &said);
    }
    check(Front::Cached, with(|mask| mask.shape[3] = 9), &["block_mask.blocks", "9", "8 blocks"]);
    // The end of the keys may cut another block of each sequence.
    check(Front::Cached, shared, &["block_mask.sequences", "1", "differ in length"]);
}

#[test]
fn requests_for_lists_are_refused() {
    type Kernel = BlockMaskKernel<create_documents::Kernel, SimDriver>;
    let card = card(Options::default());
    let of = module("create_documents");
    let kernel = Kernel::new(card.driver(), &of.contract, &of.text).expect("loads");
    let error = Kernel::new(card.driver(), &of.contract, &module("create_window").text).expect_err("another");
    assert!(error.to_string().contains("its PTX has create_window"), "{error}");

    let request = BlockMaskRequest::new(2, 1, [200, 461]);
    assert_eq!(Kernel::room(&request), Ok([4 * 4, 2 * 2 * 2 * 8]));
    for (request, said) in [
        (BlockMaskRequest::new(0, 1, [200, 461]), "sequences: 0"),
        (BlockMaskRequest::new(2, 1, [200, 0]), "seqlen_k: 0"),
        (BlockMaskRequest::new(2, 1, [200, 1 << 31]), "seqlen_k: 2147483648"),
        (BlockMaskRequest::new(1, 1, [200, 461]).varlen(Some(Index::new(256, 3)), None), "cu_seqlens_q"),
        (BlockMaskRequest::new(1 << 10, 1 << 10, [1 << 20, 1 << 20]), "2^31 integers or more"),
    ] {
        let error = Kernel::room(&request).expect_err(said);
        assert!(error.to_string().contains(said), "{error}");
    }
    let stream = card.driver().stream().expect("a stream");
    let params = Integers { base: 256, count: 1, reserved: 0 };
    let index = Index::new(256, 1000);
    for (request, lists, said) in [
        (request, [Index::new(256, 15), index], "lists[0]: 15 integers; it must have at least 16"),
        (request, [index, Index::new(256, 63)], "lists[1]: 63 integers; it must have at least 64"),
        (request, [index, Index::new(258, 64)], "lists[1]: 0x102"),
        (request.seqused_k(Index::new(256, 1)), [index; 2], "seqused_k: 1 integers"),
        (request.window([None, Some(0)]), [index; 2], "the kernel's mask reads no window"),
        (request.varlen(Some(Index::new(256, 2)), None), [index; 2], "cu_seqlens_q: 2 integers"),
    ] {
        // SAFETY: the call ends before the launch.
        let made = unsafe { kernel.launch(card.driver(), &request, params, lists, &stream) };
        let error = made.expect_err(said);
        assert!(error.to_string().contains(said), "{error}");
    }
}
