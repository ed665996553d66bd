//! Plans of a varlen batch, on a machine without a GPU: `cargo run --example varlen`.
use ferroflash::request::{AttentionRequest, Index, Mask, TensorView, VarlenKeys, VarlenQueries};
use ferroflash::{Capabilities, DType, Error, plan};

/// A device address. Planning reads no memory, so any address will do.
const AT: u64 = 1 << 40;

pub(crate) fn main() -> Result<(), Error> {
    // The host knows four sequences, 2500 rows in all, and the longest sequence. The offsets (cu_seqlens:
    // 0, 1300, 1310, 2000, 2500) lie in device memory. The device reads them when the launch runs, so a CUDA
    // graph can run again with other lengths.
    let lengths = [1300, 10, 690, 500];
    let rows: usize = lengths.iter().sum();
    let longest = *lengths.iter().max().expect("four sequences");
    let (shape, kv_shape) = ([1, rows, 16, 64], [1, rows, 4, 64]);
    let view = |address, shape: [usize; 4]| {
        TensorView::bshd(address, shape.iter().product::<usize>() as u64, DType::F16, shape)
    };
    let offsets = Index::new(AT, lengths.len() as u64 + 1);
    let (queries, keys) = (VarlenQueries::of_all(offsets, longest), VarlenKeys::new(offsets, longest));
    let [q, o] = [2 * AT, 3 * AT].map(|at| view(at, shape));
    let [k, v] = [4 * AT, 5 * AT].map(|at| view(at, kv_shape));
    let request = AttentionRequest::varlen(q, k, v, o, queries, keys);
    for (name, mask) in [
        ("full", Mask::Full),
        ("causal", Mask::Causal),
        ("window of 256 keys", Mask::Window { left: Some(255), right: Some(0) }),
    ] {
        for card in ["l4", "h100"] {
            let plan = plan(&request.mask(mask), Capabilities::profile(card).expect("a known card"))?;
            println!("{name} on {card}: {} on {} blocks", plan.contract().symbol, plan.grid()[0]);
            println!("    because: {}", plan.reason());
        }
    }
    Ok(())
}
