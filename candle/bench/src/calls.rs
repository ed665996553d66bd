//! Measures single calls: dense, varlen, paged.
use crate::clock::{row, Clock};
use crate::side::Side;
use candle::{DType, Device, Result, Tensor};
use ferroflash_candle::{Attend, PagedKv};
use serde_json::{json, Value};

fn random(shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::randn(0f32, 1., shape, device)?.to_dtype(DType::F16)
}

/// Times dense attention of one sequence of 16 to 8192 positions, with head dims 64 and 128, and 32 query
/// heads on 32 or 8 key heads.
pub fn dense(device: &Device, clock: Clock) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for d in [64, 128] {
        for causal in [false, true] {
            for heads_k in [32, 8] {
                for s in [16, 128, 512, 1024, 2048, 4096, 8192] {
                    let q = random(&[1, s, 32, d], device)?;
                    let [k, v] = [random(&[1, s, heads_k, d], device)?, random(&[1, s, heads_k, d], device)?];
                    let mut sides = Side::all();
                    // At 8192 positions, f32 scores of 32 heads take 8 GB. The plain path therefore runs only
                    // up to 2048 positions.
                    sides.retain(|side| *side != Side::Plain || (s <= 2048 && heads_k == 32));
                    let scale = 1.0 / (d as f32).sqrt();
                    let times = clock.measure(device, &sides, |side| {
                        side.flash_attn(&q, &k, &v, scale, causal).map(drop)
                    })?;
                    let group = if causal { "causal" } else { "full" };
                    let name = format!("{group} D{d} S{s} H32/{heads_k}");
                    let what = json!({"name": name, "group": group, "head_dim": d, "seqlen": s,
                        "heads": [32, heads_k]});
                    rows.push(row(what, &sides, &times, "us", 1e6));
                }
            }
        }
    }
    Ok(rows)
}

/// Returns the `cu_seqlens` of sequences of these lengths.
pub fn starts(lengths: &[usize], device: &Device) -> Result<Tensor> {
    let mut sum = 0;
    let ends = lengths.iter().map(|length| {
        sum += length;
        sum as u32
    });
    let all: Vec<u32> = std::iter::once(0).chain(ends).collect();
    let count = all.len();
    Tensor::from_vec(all, count, device)
}

/// Returns `count` lengths between a tenth of `longest` and `longest`, shuffled.
pub fn ragged(count: usize, longest: usize) -> Vec<usize> {
    (0..count)
        .map(|i| longest / 10 + (i * 7919 + 13) % count * (longest - longest / 10) / count.max(2))
        .collect()
}

/// Times varlen batches of different lengths, with 32 query heads and 8 key heads.
pub fn varlen(device: &Device, clock: Clock) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for d in [64, 128] {
        for causal in [false, true] {
            for (count, longest) in [(64, 256), (32, 1024), (16, 4096)] {
                let lengths = ragged(count, longest);
                let (total, max) = (lengths.iter().sum(), lengths.iter().copied().max().unwrap_or(1));
                let starts = starts(&lengths, device)?;
                let q = random(&[total, 32, d], device)?;
                let [k, v] = [random(&[total, 8, d], device)?, random(&[total, 8, d], device)?];
                let mut sides = Side::all();
                sides.retain(|side| *side != Side::Plain);
                let scale = 1.0 / (d as f32).sqrt();
                let times = clock.measure(device, &sides, |side| {
                    side.varlen([&q, &k, &v], &starts, max, scale, causal).map(drop)
                })?;
                let name =
                    format!("varlen {} D{d} {count} of {longest}", if causal { "causal" } else { "full" });
                let what = json!({"name": name, "group": "varlen", "head_dim": d, "seqlen": longest,
                    "sequences": count, "rows": total, "heads": [32, 8]});
                rows.push(row(what, &sides, &times, "us", 1e6));
            }
        }
    }
    Ok(rows)
}

/// Times one query per sequence on pages of 32 keys, with 32 query heads and 8 key heads. FerroFlash also
/// runs through `KvCache`, which needs no offsets.
pub fn paged(device: &Device, clock: Clock) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for d in [64, 128] {
        for (batch, length) in [
            (1, 512),
            (1, 2048),
            (1, 8192),
            (8, 512),
            (8, 2048),
            (8, 8192),
            (32, 512),
            (32, 2048),
            (32, 8192),
            (128, 2048),
        ] {
            let (page, columns) = (32, length / 32);
            let pool = batch * columns;
            let [keys, values] = [random(&[pool, page, 8, d], device)?, random(&[pool, page, 8, d], device)?];
            let q = random(&[batch, 32, d], device)?;
            // The pages of a sequence are not in order.
            let entries: Vec<u32> = (0..pool).map(|i| ((i * 7919) % pool) as u32).collect();
            let table = Tensor::from_vec(entries, (batch, columns), device)?;
            let (ones, lengths) = (starts(&vec![1; batch], device)?, starts(&vec![length; batch], device)?);
            let counts = Tensor::from_vec(vec![length as u32; batch], batch, device)?;
            let mut sides = Side::all();
            sides.retain(|side| *side != Side::Plain);
            let scale = 1.0 / (d as f32).sqrt();
            let times = clock.measure(device, &sides, |side| {
                side.paged([&q, &keys, &values], [&ones, &lengths], &table, [1, length], scale).map(drop)
            })?;
            let name = format!("paged D{d} {batch} on {length}");
            let what = json!({"name": name, "group": "paged", "head_dim": d, "seqlen": length,
                "sequences": batch, "heads": [32, 8]});
            let mut result = row(what, &sides, &times, "us", 1e6);
            let (q, kv) = (q.unsqueeze(1)?, PagedKv::new(&keys, &values, &table, &counts));
            let attend = Attend::causal(scale);
            let own = clock.measure(device, &[Side::Ours], |_| kv.attend(&q, &attend).map(drop))?;
            result["ours_cache_us"] = json!((own[0][0] * 1e10).round() / 1e4);
            rows.push(result);
        }
    }
    Ok(rows)
}
