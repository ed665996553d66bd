//! Biases, sinks, and masks of bits, in the shapes of models' calls: T5, MPNet, DeBERTa, gpt-oss, trees of
//! drafts. CI compiles these calls. On a machine with a GPU, the calls also run. docs/migrating.md shows the
//! changes to each model.
#![cfg(feature = "cuda")]
use candle::{D, DType, Device, Result, Tensor};
use ferroflash_candle::{Attend, PagedKv, RowOutputs, append, flash_attn_varlen_with, flash_attn_with_rows};

/// Models' calls, on `(batch, heads, positions, head_dim)` as candle-transformers has them.
mod models {
    use candle::{Result, Tensor};
    use ferroflash_candle::{flash_attn_bias, flash_attn_sinks, flash_attn_varlen_bias};

    fn turned(x: &Tensor) -> Result<Tensor> {
        x.transpose(1, 2)
    }

    /// T5 computes `scores = q.matmul(k.t())? + position_bias`, without a scale. The bias is `(1, heads,
    /// q_len, kv_len)`.
    pub fn t5([q, k, v]: [&Tensor; 3], position_bias: &Tensor, is_decoder: bool) -> Result<Tensor> {
        turned(&flash_attn_bias(&turned(q)?, &turned(k)?, &turned(v)?, position_bias, 1.0, is_decoder)?)
    }

    /// MPNet has relative positions `(1, heads, len, len)`, and 0 or -inf for padding, `(batch, 1, 1, len)`.
    pub fn mpnet([q, k, v]: [&Tensor; 3], position_bias: &Tensor, padding: &Tensor) -> Result<Tensor> {
        let bias = position_bias.broadcast_add(padding)?;
        let scale = (q.dims()[3] as f32).powf(-0.5);
        turned(&flash_attn_bias(&turned(q)?, &turned(k)?, &turned(v)?, &bias, scale, false)?)
    }

    /// Without padding, MPNet's texts follow one another in `(rows, heads, head_dim)`.
    pub fn mpnet_varlen(
        [q, k, v]: [&Tensor; 3],
        position_bias: &Tensor,
        starts: &Tensor,
        longest: usize,
    ) -> Result<Tensor> {
        let scale = (q.dims()[2] as f32).powf(-0.5);
        flash_attn_varlen_bias(q, k, v, position_bias, starts, starts, longest, longest, scale, false)
    }

    /// DeBERTa v2 has `rel_att`, `(batch * heads, len, len)`: content to position plus position to content.
    /// Each of the three terms of a score has the scale `1 / sqrt(3 * head_dim)`; `rel_att` contains it
    /// already.
    pub fn deberta([q, k, v]: [&Tensor; 3], rel_att: &Tensor) -> Result<Tensor> {
        let (batch, heads, len, head_dim) = q.dims4()?;
        let bias = rel_att.reshape((batch, heads, len, k.dims()[2]))?;
        let scale = (3.0 * head_dim as f32).powf(-0.5);
        turned(&flash_attn_bias(&turned(q)?, &turned(k)?, &turned(v)?, &bias, scale, false)?)
    }

    /// gpt-oss has a sink per head, and a window in every other layer.
    pub fn gpt_oss([q, k, v]: [&Tensor; 3], sinks: &Tensor, window: Option<usize>) -> Result<Tensor> {
        let scale = (q.dims()[3] as f32).powf(-0.5);
        let left = window.map(|keys| keys - 1);
        turned(&flash_attn_sinks(&turned(q)?, &turned(k)?, &turned(v)?, sinks, scale, left, Some(0))?)
    }
}

/// Computes attention in f32 by its definition, on `(batch, heads, positions, head_dim)`, with the terms that
/// the model adds to scores.
fn plain([q, k, v]: [&Tensor; 3], scale: f32, more: &Tensor, sinks: Option<&Tensor>) -> Result<Tensor> {
    let [q, k, v] = [q, k, v].map(|x| x.to_dtype(DType::F32)?.contiguous());
    let scores = (q?.matmul(&k?.t()?)? * f64::from(scale))?.broadcast_add(&more.to_dtype(DType::F32)?)?;
    let (batch, heads, queries, keys) = scores.dims4()?;
    let scores = match sinks {
        None => scores,
        Some(sinks) => {
            let sinks = sinks.reshape((1, heads, 1, 1))?.broadcast_as((batch, heads, queries, 1))?;
            Tensor::cat(&[&scores, &sinks.contiguous()?], 3)?
        }
    };
    let shares = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    let shares = shares.broadcast_div(&shares.sum_keepdim(D::Minus1)?)?.narrow(3, 0, keys)?;
    shares.contiguous()?.matmul(&v?)
}

fn check(what: &str, found: &Tensor, expected: &Tensor) -> Result<()> {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let apart = (found.to_dtype(DType::F32)? - expected)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    assert!(apart <= 3e-2, "{what}: {apart}");
    Ok(())
}

/// Checks a result. If the table has no kernel for the request, checks that the planner's error names the
/// missing feature. A call becomes a [`check`] when its kernel exists.
fn check_or_refused(what: &str, named: &str, found: Result<Tensor>, expected: &Tensor) -> Result<()> {
    match found {
        Ok(found) => check(what, &found, expected),
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains("no kernel for keys") && message.contains(named), "{what}: {message}");
            Ok(())
        }
    }
}

/// Returns a bias `(queries, keys)`: 0 for keys that a query sees, -inf for others.
fn hidden(queries: usize, keys: usize, sees: impl Fn(usize, usize) -> bool) -> Result<Tensor> {
    let pairs = (0..queries).flat_map(|i| (0..keys).map(move |j| (i, j)));
    let all = pairs.map(|(i, j)| if sees(i, j) { 0.0 } else { f32::NEG_INFINITY });
    Tensor::from_iter(all, &Device::new_cuda(0)?)?.reshape((queries, keys))
}

#[test]
fn relative_positions() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let (batch, heads, len, dim) = (2, 4, 101, 64);
    let random = |shape: &[usize], dtype| Tensor::randn(0f32, 1.0, shape, &device)?.to_dtype(dtype);
    let all = |dtype| random(&[batch, heads, len, dim], dtype);
    for dtype in [DType::F16, DType::BF16] {
        let [q, k, v] = [all(dtype)?, all(dtype)?, all(dtype)?];
        // T5 has no scale, because its weights make small scores. Rows of an odd number of keys begin at
        // multiples of a word.
        let q = (q * 0.125)?;
        let qkv = [&q, &k, &v];
        let bias = random(&[1, heads, len, len], dtype)?;
        let in_words = bias.pad_with_zeros(3, 0, 1)?.narrow(3, 0, len)?;
        for is_decoder in [false, true] {
            let more = hidden(len, len, |i, j| !is_decoder || j <= i)?;
            let more = bias.to_dtype(DType::F32)?.broadcast_add(&more)?;
            let found = models::t5(qkv, &in_words, is_decoder);
            check_or_refused("t5", "bias", found, &plain(qkv, 1.0, &more, None)?)?;
        }
        let f32s = random(&[1, heads, len, len], DType::F32)?;
        let padding = hidden(batch, len, |b, j| b == 0 || j < 70)?.reshape((batch, 1, 1, len))?;
        let expected = plain(qkv, 0.125, &f32s.broadcast_add(&padding)?, None)?;
        check_or_refused("mpnet", "bias", models::mpnet(qkv, &f32s, &padding), &expected)?;
        let rows = |x: &Tensor| x.transpose(1, 2)?.reshape((batch * len, heads, dim));
        let starts = Tensor::new(&[0u32, len as u32, 2 * len as u32], &device)?;
        let found = models::mpnet_varlen([&rows(&q)?, &rows(&k)?, &rows(&v)?], &f32s, &starts, len);
        let expected = rows(&plain(qkv, 0.125, &f32s, None)?)?;
        check_or_refused("mpnet, varlen", "bias", found, &expected)?;
        let rel_att = random(&[batch * heads, len, len], DType::F32)?;
        let scale = (3.0 * dim as f32).powf(-0.5);
        let expected = plain(qkv, scale, &rel_att.reshape((batch, heads, len, len))?, None)?;
        check_or_refused("deberta", "bias", models::deberta(qkv, &rel_att), &expected)?;
    }
    Ok(())
}

#[test]
fn sinks_of_prompts() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let (heads, len) = (4, 150);
    // Head dim 192 has no kernel with sinks, so a merge adds them.
    for dim in [64, 128, 192] {
        let random = || Tensor::randn(0f32, 1.0, (2, heads, len, dim), &device)?.to_dtype(DType::BF16);
        let [q, k, v] = [random()?, random()?, random()?];
        let sinks = Tensor::new(&[0.5f32, -1.0, 3.0, f32::NEG_INFINITY], &device)?;
        for window in [None, Some(40)] {
            let more = hidden(len, len, |i, j| j <= i && window.is_none_or(|keys| i - j < keys))?;
            let expected = plain([&q, &k, &v], (dim as f32).powf(-0.5), &more, Some(&sinks))?;
            check("gpt-oss", &models::gpt_oss([&q, &k, &v], &sinks, window)?, &expected)?;
        }
    }
    Ok(())
}

/// The largest score of each row, beside the LSE. A model watches it to find unstable training.
#[test]
fn largest_scores() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let random = |heads| Tensor::randn(0f32, 1.0, (2, 77, heads, 64), &device)?.to_dtype(DType::F16);
    let [q, k] = [random(4)?, random(4)?];
    let all = RowOutputs { lse: true, max_logits: true, entropy: true };
    let (o, rows) = flash_attn_with_rows(&q, &k, &k, &Attend::causal(0.125), all)?;
    let [q, k] = [&q, &k].map(|x| x.transpose(1, 2)?.to_dtype(DType::F32)?.contiguous());
    let scores = (q?.matmul(&k?.t()?)? * 0.125)?.broadcast_add(&hidden(77, 77, |i, j| j <= i)?)?;
    let expected = scores.max(D::Minus1)?;
    assert_eq!(
        (o.dims(), rows.lse.map(|lse| lse.dims().to_vec())),
        (&[2, 77, 4, 64][..], Some(vec![2, 4, 77]))
    );
    check("max_logits", &rows.max_logits.expect("asked for"), &expected)
}

/// Sequences whose last rows are padding have the results of sequences without padding.
#[test]
fn padded_queries() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let random = |rows| Tensor::randn(0f32, 1.0, (rows, 4, 64), &device)?.to_dtype(DType::F16);
    let (q, k, [used, rows], keys) = (random(192)?, random(150)?, [[70u32, 9], [96, 96]], [90, 60]);
    let starts = |[first, second]: [u32; 2]| Tensor::new(&[0, first, first + second], &device);
    let causal = Attend::causal(0.125);
    let padded = causal.clone().seqused_q(&Tensor::new(&used, &device)?);
    let (starts_q, starts_k) = (starts(rows)?, starts(keys)?);
    let found = flash_attn_varlen_with(&q, &k, &k, &starts_q, &starts_k, 96, 90, &padded)?;
    let used_rows = |x: &Tensor| Tensor::cat(&[x.narrow(0, 0, 70)?, x.narrow(0, 96, 9)?], 0);
    let q = used_rows(&q)?;
    let expected = flash_attn_varlen_with(&q, &k, &k, &starts(used)?, &starts_k, 70, 90, &causal)?;
    check("padded queries", &used_rows(&found)?, &expected.to_dtype(DType::F32)?)
}

/// A tree of seven drafts follows a prefix. Each node sees the prefix, its ancestors and itself.
#[test]
fn trees_of_drafts() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let (heads, dim, prefix, page) = (4, 64, 53, 16);
    let parents: [Option<usize>; 7] = [None, Some(0), Some(0), Some(1), Some(1), Some(2), Some(5)];
    let is_ancestor = |node: usize, other: usize| {
        let mut at = Some(node);
        while at.is_some_and(|at| at != other) {
            at = at.and_then(|at| parents[at]);
        }
        at.is_some()
    };
    let (nodes, keys) = (parents.len(), prefix + parents.len());
    let row = |node| (0..nodes).fold(0u8, |row, other| row | u8::from(is_ancestor(node, other)) << other);
    let bits = Tensor::from_iter((0..nodes).map(row), &device)?.reshape((1, nodes, 1))?;
    let random =
        |rows| Tensor::randn(0f32, 1.0, (rows, heads, dim), &device).and_then(|x| x.to_dtype(DType::F16));
    let (q, k, v) = (random(nodes)?, random(keys)?, random(keys)?);
    let cache = || Tensor::zeros((9, page, heads, dim), DType::F16, &device);
    let (key_pages, value_pages, table) = (cache()?, cache()?, [7u32, 2, 5, 0]);
    let slots: Vec<_> =
        (0..keys).map(|key| i64::from(table[key / page]) * 16 + (key % page) as i64).collect();
    append(&k, &v, &key_pages, &value_pages, &Tensor::new(slots, &device)?, None)?;
    let (table, lengths) = (Tensor::new(&[table], &device)?, Tensor::new(&[keys as u32], &device)?);
    let kv = PagedKv::new(&key_pages, &value_pages, &table, &lengths);
    let attend = Attend::full(0.125).mask_bits(&bits, nodes);
    let found = kv.attend(&q.unsqueeze(0)?, &attend);
    let more = hidden(nodes, keys, |i, j| j < prefix || is_ancestor(i, j - prefix))?;
    let [q, k, v] = [q, k, v].map(|x| x.transpose(0, 1)?.unsqueeze(0));
    let expected = plain([&q?, &k?, &v?], 0.125, &more, None)?;
    check_or_refused("tree", "bits", found, &expected.transpose(1, 2)?)
}
