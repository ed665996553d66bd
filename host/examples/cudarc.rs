//! Attention inside a `cudarc` program: its context, its stream, its slices; safe Rust.
use cudarc::driver::CudaContext;
use ferroflash::cudarc::{FlashAttention, Tensor};
use half::f16;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let attention = FlashAttention::new(&context)?;

    // One batch, 8 query heads on 2 key heads, head dim 64, every element 1: so is every output.
    for (queries, keys) in [(1000, 1000), (100, 8192)] {
        let q = stream.clone_htod(&vec![f16::ONE; queries * 8 * 64])?;
        let kv = stream.clone_htod(&vec![f16::ONE; keys * 2 * 64])?;
        let (q, kv) = (Tensor::new(&q, [1, queries, 8, 64]), Tensor::new(&kv, [1, keys, 2, 64]));
        let o = attention.flash_attn(&stream, q, kv, kv, 0.125, true)?;
        let windowed = attention.flash_attn_windowed(&stream, q, kv, kv, 0.125, Some(127), Some(0))?;
        for o in [o, windowed] {
            let o = stream.clone_dtoh(&o)?;
            assert!(o.len() == queries * 8 * 64 && o.iter().all(|x| *x == f16::ONE));
        }
        println!("{queries} queries on {keys} keys: every output is 1");
    }
    Ok(())
}
