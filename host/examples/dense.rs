//! Plans of dense attention for three GPUs, on a machine without a GPU: `cargo run --example dense`.
use ferroflash::request::{AttentionRequest, Mask, TensorView};
use ferroflash::{Capabilities, DType, Error, plan};

/// A device address. Planning reads no memory, so any address will do.
const Q: u64 = 1 << 40;

pub(crate) fn main() -> Result<(), Error> {
    // 2 sequences of 4096 positions; 32 query heads share 8 key heads; head dim 128.
    let (shape, kv_shape) = ([2, 4096, 32, 128], [2, 4096, 8, 128]);
    let view = |address, shape: [usize; 4]| {
        TensorView::bshd(address, shape.iter().product::<usize>() as u64, DType::Bf16, shape)
    };
    let [q, k, v, o] =
        [(Q, shape), (2 * Q, kv_shape), (3 * Q, kv_shape), (4 * Q, shape)].map(|(at, of)| view(at, of));
    let request = AttentionRequest::dense(q, k, v, o).mask(Mask::Causal);
    for card in ["l4", "a100", "h100"] {
        let plan = plan(&request, Capabilities::profile(card).expect("a known card"))?;
        println!("{card}: {} on {} blocks", plan.contract().symbol, plan.grid()[0]);
        println!("    because: {}", plan.reason());
    }

    // An invalid request is an error that names the field, its value and the remedy.
    let mut odd = k;
    odd.strides[2] = 12;
    let request = AttentionRequest::dense(q, odd, v, o);
    let refused = plan(&request, Capabilities::profile("h100").expect("a known card"));
    println!("with a wrong stride: {}", refused.expect_err("it is invalid"));
    Ok(())
}
