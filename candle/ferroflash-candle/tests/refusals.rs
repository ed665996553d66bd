//! Refusals that come before any lock and before any use of a GPU. Tensors on the CPU suffice to test them.
#![cfg(feature = "cuda")]
use candle::{DType, Device, Error, Result, Tensor, Var};
use ferroflash_candle::{
    Attend, LatentCache, PagePool, PagedKv, RotaryStyle, RotaryTable, RowOutputs, Sequence, Step, append,
    append_latent, append_latent_rotary, append_rotary, flash_attn_varlen_with_lse, flash_attn_with,
    flash_attn_with_lse, flash_attn_with_rows, merge,
};

/// Returns the text of `ferroflash::Error` in a candle error.
fn refusal<T>(result: Result<T>) -> String {
    match result.err().expect("it is refused") {
        Error::WithBacktrace { inner, .. } => inner.to_string(),
        other => other.to_string(),
    }
}

fn check<T>(result: Result<T>, words: &str) {
    let found = refusal(result);
    assert!(found.contains(words), "{found}; not {words}");
}

#[test]
fn tensors_of_one_storage() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F16, &Device::Cpu);
    let (both, other) = (zeros(&[2, 3, 16, 2, 64])?, zeros(&[3, 16, 2, 64])?);
    let [k_half, v_half] = [both.get(0)?, both.get(1)?];
    let new = zeros(&[4, 2, 64])?;
    let slots = Tensor::zeros(4, DType::I64, &Device::Cpu)?;
    let part = |cache: &Tensor| cache.get(0)?.narrow(0, 0, 4);
    let [of_keys, of_values] = [part(&k_half)?, part(&other)?];
    for ([k, v, k_cache, v_cache, slots], name) in [
        ([&new, &new, &k_half, &v_half, &slots], "v_cache"),
        ([&new, &new, &other, &other, &slots], "v_cache"),
        ([&of_keys, &new, &k_half, &other, &slots], "k"),
        ([&of_values, &new, &k_half, &other, &slots], "k"),
        ([&new, &of_keys, &k_half, &other, &slots], "v"),
        ([&new, &of_values, &k_half, &other, &slots], "v"),
        ([&new, &new, &k_half, &other, &of_values], "slots"),
    ] {
        check(append(k, v, k_cache, v_cache, slots, None), &format!("invalid {name}: in "));
    }
    Ok(())
}

#[test]
fn rotations_of_other_tensors() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F16, &Device::Cpu);
    let (keys, values, new) = (zeros(&[3, 16, 2, 64])?, zeros(&[3, 16, 2, 64])?, zeros(&[4, 2, 64])?);
    let [cos, wide] = [zeros(&[100, 32])?, zeros(&[100, 64])?];
    let slots = Tensor::zeros(4, DType::I64, &Device::Cpu)?;
    let in_cache = keys.get(0)?.narrow(0, 0, 4)?;
    for (q, cos, sin, words) in [
        (&new, &cos, &wide, "invalid sin"),
        (&new, &wide.narrow(1, 0, 32)?, &cos, "invalid cos"),
        (&in_cache, &cos, &cos, "invalid q: in "),
    ] {
        let table = RotaryTable { cos: cos.clone(), sin: sin.clone(), style: RotaryStyle::Halves };
        check(append_rotary(q, (&new, &new), (&keys, &values), &slots, None, &table, &slots), words);
    }
    Ok(())
}

#[test]
fn latent_caches() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F16, &Device::Cpu);
    let (cache, rows, q) = (zeros(&[3, 16, 1, 576])?, zeros(&[4, 576])?, zeros(&[4, 8, 576])?);
    let slots = Tensor::zeros(4, DType::I64, &Device::Cpu)?;
    let in_cache = cache.get(0)?.narrow(0, 0, 4)?.squeeze(1)?;
    for (rows, slots, words) in
        [(&in_cache, &slots, "invalid rows: in "), (&rows, &in_cache, "invalid slots")]
    {
        check(append_latent(rows, &cache, 512, slots), words);
    }
    let [cos, wide] = [zeros(&[100, 32])?, zeros(&[100, 64])?];
    for (q, sin, words) in [(&q, &wide, "invalid sin"), (&in_cache, &cos, "invalid q: in ")] {
        let table = RotaryTable { cos: cos.clone(), sin: sin.clone(), style: RotaryStyle::Halves };
        check(append_latent_rotary(q, &rows, (&cache, 512), &slots, &table, &slots), words);
    }
    for (columns, dtype, words) in [
        (0, DType::BF16, "invalid value_columns: 0"),
        (576, DType::F16, "invalid value_columns: 576"),
        (512, DType::U8, "a latent cache of U8"),
    ] {
        check(LatentCache::new((3, 16, 576), columns, dtype, &Device::Cpu), words);
    }
    let mut cache = LatentCache::new((3, 16, 576), 512, DType::BF16, &Device::Cpu)?;
    assert_eq!(cache.tensors().map(|tensor| tensor.dims().to_vec()), [[3, 16, 1, 576], [3, 16, 1, 512]]);
    let step = Step::new(2, 64, 4, 32, &Device::Cpu)?;
    check(cache.append(&rows, &step), "invalid step.page: 32");
    Ok(())
}

#[test]
fn numbers_without_end() -> Result<()> {
    let (mut pool, mut sequence) = (PagePool::new(4, 16), Sequence::new());
    pool.grow(&mut sequence, 20)?;
    sequence.advance(20);
    check(pool.grow(&mut sequence, usize::MAX), "invalid tokens");
    check(pool.grow(&mut sequence, 100), "invalid free pages");
    assert_eq!((pool.free(), sequence.pages().len()), (2, 2));
    let mut other = PagePool::new(4, 16);
    check(other.grow(&mut sequence, 1), "invalid sequence");
    assert_eq!((other.share(&sequence, 16).keys(), other.free()), (0, 4));
    let shared = pool.share(&sequence, 16);
    assert_eq!(shared.pages(), &sequence.pages()[..1]);
    other.release(shared);
    assert_eq!((other.free(), pool.free()), (4, 2));
    for ([sequences, tokens, columns, page], words) in [
        ([1, 1, 1, 0], "invalid page"),
        ([usize::MAX, 1, 1, 16], "invalid step"),
        ([1, usize::MAX, 1, 16], "invalid step"),
        ([1 << 20, 1, 1 << 50, 16], "invalid step"),
    ] {
        check(Step::new(sequences, tokens, columns, page, &Device::Cpu), words);
    }
    let mut step = Step::new(2, 64, 4, 16, &Device::Cpu)?;
    for (tokens, words) in [([usize::MAX, 1], "invalid tokens"), ([1, 0], "invalid tokens")] {
        check(step.set(&tokens.map(|tokens| (&sequence, tokens))), words);
    }
    sequence.advance(usize::MAX);
    check(step.set(&[(&sequence, 1)]), "invalid tokens");
    check(pool.grow(&mut sequence, 1), "invalid tokens");
    Ok(())
}

/// A gradient that no function computes is not lost in silence.
#[test]
fn tensors_that_want_gradients() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F16, &Device::Cpu);
    let (q, lse) = (zeros(&[1, 8, 2, 64])?, Tensor::zeros((1, 2, 8), DType::F32, &Device::Cpu)?);
    let var = |shape: &[usize]| Var::zeros(shape, DType::F32, &Device::Cpu);
    let (of_heads, bias) = (var(&[2])?, var(&[1, 1, 8, 8])?);
    let full = Attend::full(0.125);
    for (attend, name) in [
        (full.clone().alibi_slopes(&of_heads), "alibi_slopes"),
        (full.clone().sinks(&of_heads), "sinks"),
        (full.clone().bias(&bias), "bias"),
    ] {
        let words = format!("invalid {name}: a tensor with a gradient");
        check(flash_attn_with(&q, &q, &q, &attend), &words);
        check(flash_attn_with_lse(&q, &q, &q, &attend), &words);
        check(flash_attn_with_rows(&q, &q, &q, &attend, RowOutputs::LSE), &words);
        let starts = Tensor::new(&[0u32, 8], &Device::Cpu)?;
        let rows = q.get(0)?;
        check(flash_attn_varlen_with_lse(&rows, &rows, &rows, &starts, &starts, 8, 8, &attend), &words);
        let (pages, table) = (zeros(&[1, 16, 2, 64])?, Tensor::zeros((1, 1), DType::U32, &Device::Cpu)?);
        let lengths = Tensor::new(&[8u32], &Device::Cpu)?;
        check(PagedKv::new(&pages, &pages, &table, &lengths).attend(&q, &attend), &words);
    }
    let tracked = var(&[1, 2, 8])?;
    let words = "flash-attn-with-lse";
    check(merge((&q, &lse), (&q, &tracked)), words);
    check(merge((&q, &tracked), (&q, &lse)), words);
    check(flash_attn_with(&q, &q, Var::from_tensor(&q)?.as_tensor(), &full), words);
    check(flash_attn_with(&q, &q, &q, &full), "invalid q: Cpu; it must be on the GPU");
    Ok(())
}
