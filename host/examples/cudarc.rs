//! Attention in a `cudarc` program, with the program's context, stream and slices, in safe Rust. All keys are
//! equal, and each value is the index of its sequence, so the example knows every output.
use cudarc::driver::{CudaContext, CudaStream};
use ferroflash::cudarc::{
    Append, Cache, FlashAttention, Inputs, Integers, Number, Pages, PagesMut, ScratchMemory, Slice, State,
};
use ferroflash::cudarc::{Tensor, TensorMut};
use ferroflash::request::{KvScale, Mask, Queries, Slots, VarlenQueries};
use half::f16;
use std::{error::Error, sync::Arc};

type Outcome = Result<(), Box<dyn Error>>;

/// The example has 8 query heads on 2 key heads, and head dim 64.
const HEADS: usize = 8;
const KEY_HEADS: usize = 2;
const DIM: usize = 64;

fn main() -> Outcome {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let attention = FlashAttention::new(&context)?;
    one_sequence(&attention, &stream)?;
    varlen(&attention, &stream)?;
    // A 16-bit cache stores the values. An e4m3 cache stores twice the values. Unwritten rows hold NaN.
    served(&attention, &stream, f16::NAN, None)?;
    served(&attention, &stream, 0x7f_u8, Some(0.5))
}

fn one_sequence(attention: &FlashAttention, stream: &Arc<CudaStream>) -> Outcome {
    for (queries, keys) in [(1000, 1000), (100, 8192)] {
        let q = stream.clone_htod(&vec![f16::ONE; queries * HEADS * DIM])?;
        let kv = stream.clone_htod(&vec![f16::ONE; keys * KEY_HEADS * DIM])?;
        let q = Tensor::of(&q, [1, queries, HEADS, DIM]);
        let kv = Tensor::of(&kv, [1, keys, KEY_HEADS, DIM]);
        let o = attention.flash_attn::<f16>(stream, q, kv, kv, 0.125, true)?;
        let windowed = attention.flash_attn_windowed::<f16>(stream, q, kv, kv, 0.125, Some(127), Some(0))?;
        for o in [o, windowed] {
            let o = stream.clone_dtoh(&o)?;
            assert!(o.len() == queries * HEADS * DIM && o.iter().all(|x| *x == f16::ONE));
        }
        println!("{queries} queries on {keys} keys: every output is 1");
    }
    Ok(())
}

/// Returns the value in each row: the index of its sequence, from 1 on.
fn numbers(lengths: &[usize], columns: usize) -> Vec<f16> {
    let rows = lengths.iter().zip(1..).flat_map(|(&rows, number)| vec![number; rows * columns]);
    rows.map(|number: u8| f16::from_f32(number.into())).collect()
}

fn varlen(attention: &FlashAttention, stream: &Arc<CudaStream>) -> Outcome {
    let lengths = [3, 0, 200, 64];
    let starts: Vec<u32> = (0..=4).map(|b| lengths[..b].iter().sum::<usize>() as u32).collect();
    let (starts, rows) = (stream.clone_htod(&starts)?, 267);
    let starts = Integers::of(&starts);
    let q = stream.clone_htod(&vec![f16::ONE; rows * HEADS * DIM])?;
    let k = stream.clone_htod(&vec![f16::ONE; rows * KEY_HEADS * DIM])?;
    let v = stream.clone_htod(&numbers(&lengths, KEY_HEADS * DIM))?;
    let q = Tensor::of(&q, [1, rows, HEADS, DIM]);
    let [k, v] = [&k, &v].map(|data| Tensor::of(data, [1, rows, KEY_HEADS, DIM]));
    let o = attention.flash_attn_varlen::<f16>(stream, q, k, v, starts, starts, 200, 200, 0.125, true)?;
    assert!(stream.clone_dtoh(&o)? == numbers(&lengths, HEADS * DIM));
    println!("4 varlen sequences: every output is its sequence's number");
    Ok(())
}

/// Returns the scale of a cache.
fn of<M>(scale: Option<f32>) -> KvScale<M> {
    scale.map_or(KvScale::One, KvScale::Value)
}

/// Runs attention on a KV cache. Keys and values go into pages of 16 in any order. Each sequence reads its
/// own pages.
fn served<C: Number>(
    attention: &FlashAttention,
    stream: &Arc<CudaStream>,
    nothing: C,
    scale: Option<f32>,
) -> Outcome {
    const PAGES: usize = 8;
    let (lengths, columns, shape) = ([5, 16, 37], 3, [PAGES, 16, KEY_HEADS, DIM]);
    let owned = [[6_u32, 9, 9], [0, 9, 9], [3, 7, 1]];
    let slots = lengths.iter().zip(owned).flat_map(|(&length, pages)| {
        (0..length).map(move |key| i64::from(pages[key / 16]) * 16 + key as i64 % 16)
    });
    let slots = stream.clone_htod(&slots.collect::<Vec<_>>())?;
    let table = stream.clone_htod(owned.as_flattened())?;
    let tokens = lengths.iter().sum();
    let k = stream.clone_htod(&vec![f16::ONE; tokens * KEY_HEADS * DIM])?;
    let v = stream.clone_htod(&numbers(&lengths, KEY_HEADS * DIM))?;
    let [k, v] = [&k, &v].map(|data| Tensor::of(data, [1, tokens, KEY_HEADS, DIM]));
    let mut keys = stream.clone_htod(&vec![nothing; PAGES * 16 * KEY_HEADS * DIM])?;
    let mut values = keys.clone();
    let pages = PagesMut::of(&mut keys, &mut values, shape).scales(of(scale), of(scale));
    attention.append(stream, Append::new(k, v, pages, Slots::of(&slots)))?;

    let q = stream.clone_htod(&vec![f16::ONE; 3 * HEADS * DIM])?;
    let q = Tensor::of(&q, [3, 1, HEADS, DIM]);
    let used = stream.clone_htod(&lengths.map(|length| length as i32))?;
    let cache = Cache::paged(
        Pages::of(&keys, &values, shape).scales(of(scale), of(scale)),
        Integers::of(&table),
        columns,
        Integers::of(&used),
    );
    let mut scratch = ScratchMemory::new();
    let wanted = numbers(&[1; 3], HEADS * DIM);
    let o = attention.flash_attn_with_kvcache::<f16>(stream, q, cache, 0.125, true, &mut scratch)?;
    assert!(stream.clone_dtoh(&o)? == wanted);

    // Prompts: every token is a query, and sees the keys up to its own position.
    let starts: Vec<u32> = (0..=3).map(|b| lengths[..b].iter().sum::<usize>() as u32).collect();
    let starts = stream.clone_htod(&starts)?;
    let rows = stream.clone_htod(&vec![f16::ONE; tokens * HEADS * DIM])?;
    let rows = Tensor::of(&rows, [1, tokens, HEADS, DIM]);
    let prompts = Inputs::of_cache(rows, cache)
        .queries(Queries::Varlen(VarlenQueries::of(&starts, 37)))
        .mask(Mask::Causal);
    let o = attention.attend::<f16>(stream, &prompts, &mut scratch)?;
    assert!(stream.clone_dtoh(&o)? == numbers(&lengths, HEADS * DIM));

    // The third case has keys and values in one buffer.
    let mut both = stream.clone_htod(&vec![nothing; 2 * PAGES * 16 * KEY_HEADS * DIM])?;
    let pages = PagesMut::of_both(TensorMut::of(&mut both, shape).strides([4096, 128, 64, 1]))
        .scales(of(scale), of(scale));
    attention.append(stream, Append::new(k, v, pages, Slots::of(&slots)))?;
    let pages = Pages::of_both(&both, shape, false).scales(of(scale), of(scale));
    let (both, step) =
        (Cache::paged(pages, Integers::of(&table), columns, Integers::of(&used)), &mut scratch);
    let o = attention.flash_attn_with_kvcache::<f16>(stream, q, both, 0.125, true, step)?;
    assert!(stream.clone_dtoh(&o)? == wanted);

    // A second copy of the keys doubles their weight, and does not change the result.
    let request = Inputs::of_cache(q, cache).mask(Mask::Causal);
    let (o, lse) = attention.attend_with_lse::<f16>(stream, &request, &mut scratch)?;
    let state = State::of(Tensor::of(&o, [3, 1, HEADS, DIM]), Slice::new(&lse));
    let mut merged = stream.alloc_zeros::<f16>(3 * HEADS * DIM)?;
    let mut all = stream.alloc_zeros::<f32>(3 * HEADS)?;
    let into = TensorMut::of(&mut merged, [3, 1, HEADS, DIM]);
    attention.merge(stream, &[state, state], None, into, Some(&mut all))?;
    assert!(stream.clone_dtoh(&merged)? == wanted);
    let grown = stream.clone_dtoh(&lse)?.into_iter().zip(stream.clone_dtoh(&all)?);
    assert!(grown.into_iter().all(|(one, two)| (two - one - f32::ln(2.0)).abs() < 1e-3));
    println!("3 sequences on pages of {}: every output is its sequence's number", C::DTYPE.name());
    Ok(())
}
