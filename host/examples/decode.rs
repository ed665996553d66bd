//! Plans of decode on a paged KV cache, and the scratch memory of split-KV, on a machine without a GPU:
//! `cargo run --example decode`.
use ferroflash::request::{AttentionRequest, Index, KvCache, KvPages, Mask, Scratch, TensorView};
use ferroflash::{Capabilities, DType, Error, plan};

/// A device address. Planning reads no memory, so any address will do.
const AT: u64 = 1 << 40;
/// Keys per page.
const PAGE: usize = 16;

pub(crate) fn main() -> Result<(), Error> {
    let view = |address, shape: [usize; 4]| {
        TensorView::bshd(address, shape.iter().product::<usize>() as u64, DType::F16, shape)
    };
    let card = Capabilities::profile("h100").expect("a known card");
    // The pool holds the pages of all sequences: [pages, page, key heads, head dim].
    let pool = [65536 / PAGE, PAGE, 8, 128];
    for batch in [1, 64] {
        // One query per sequence; 32 query heads; up to 8192 keys per sequence. The device reads the block
        // table and the lengths when the launch runs.
        let shape = [batch, 1, 32, 128];
        let columns = 8192 / PAGE;
        let table = Index::new(AT, (batch * columns) as u64);
        let lengths = Index::new(2 * AT, batch as u64);
        let pages = KvPages::new(view(3 * AT, pool), view(4 * AT, pool));
        let cache = KvCache::paged(pages, table, columns, lengths);
        let request = AttentionRequest::cached(view(5 * AT, shape), cache, view(6 * AT, shape))
            .mask(Mask::Causal)
            .scratch(Scratch::Fastest);
        let plan = plan(&request, card)?;
        let bytes = plan.scratch_bytes();
        println!("{batch} sequences: {} on {:?} blocks", plan.contract().symbol, plan.grid());
        println!("    scratch memory: {} bytes, and {} of counters", bytes.workspace, bytes.counters);
        println!("    because: {}", plan.reason());
    }
    Ok(())
}
