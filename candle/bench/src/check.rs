//! Compares every function with candle's plain attention in f32, and a model's logits by FlashAttention's
//! rule.
use crate::calls::starts;
use crate::graph;
use crate::model::{tokens, Config, Model};
use crate::reference::Reference;
use crate::side::{Shared, Side};
use crate::tally::{furthest, Tally};
use candle::{DType, Device, Result, Tensor};
use ferroflash_candle::{Attend, CacheScales, KvCache, PagePool, Sequence, Step};

fn allowed(dtype: DType) -> f32 {
    if dtype == DType::F16 {
        4e-3
    } else {
        3e-2
    }
}

/// Checks dense tensors: types, head dims, groups, masks, softcap, slopes, strides and offsets.
pub fn dense(device: &Device, tally: &mut Tally) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for (b, sq, sk, h, hk, d) in [
            (1, 3, 3, 2, 2, 8),
            (2, 200, 200, 4, 2, 64),
            (2, 77, 300, 8, 1, 128),
            (1, 1, 513, 8, 2, 96),
            (1, 130, 257, 2, 2, 256),
            (1, 70, 140, 2, 1, 512),
        ] {
            for (left, right, softcap, alibi) in [
                (None, None, 0.0, false),
                (None, Some(0), 0.0, false),
                (Some(40), Some(0), 0.0, false),
                (Some(10), Some(20), 0.0, false),
                (None, Some(0), 20.0, false),
                (Some(9999), None, -1.0, false),
                (None, Some(0), 0.0, true),
                (None, None, 0.0, true),
            ] {
                if alibi && d > 256 {
                    continue;
                }
                let slopes: Vec<f32> = (0..h).map(|i| 0.5f32.powi(i as i32 + 1)).collect();
                let slopes = alibi.then(|| Tensor::from_vec(slopes, h, device)).transpose()?;
                let scale = 1.0 / (d as f32).sqrt();
                // Each tensor (batch, heads, sequence, head dim) is transposed to the layout of the
                // functions. The transposed tensor has other strides and an offset.
                let s = sq.max(sk);
                let all = Tensor::randn(0f32, 1., (b, h + 2 * hk, s, d), device)?.to_dtype(dtype)?;
                let part =
                    |at, heads, rows| all.narrow(1, at, heads)?.narrow(2, s - rows, rows)?.transpose(1, 2);
                let (q, k, v) = (part(0, h, sq)?, part(h, hk, sk)?, part(h + hk, hk, sk)?);
                let shape = format!("{dtype:?} b{b} q{sq} k{sk} h{h}/{hk} d{d}");
                let name = format!("{shape} {left:?} {right:?} cap {softcap} alibi {alibi}");
                let o = ferroflash_candle::flash_attn_alibi_windowed_softcap(
                    &q,
                    &k,
                    &v,
                    slopes.as_ref(),
                    scale,
                    left,
                    right,
                    softcap,
                );
                let error = o.and_then(|o| {
                    let mut most = 0f32;
                    for i in 0..b {
                        let (sinks, ranges) = (None, Vec::new());
                        let reference =
                            Reference { scale, softcap, left, right, slopes: slopes.clone(), sinks, ranges };
                        let expected = reference.run(&q.get(i)?, &k.get(i)?, &v.get(i)?)?.0;
                        most = most.max(furthest(&o.get(i)?, &expected)?);
                    }
                    Ok(most)
                });
                tally.say(&name, error, allowed(dtype));
            }
        }
    }
    Ok(())
}

/// Checks varlen batches, and the LSE of dense and varlen attention.
pub fn varlen(device: &Device, tally: &mut Tally) -> Result<()> {
    let lengths = [5, 130, 1, 64, 0, 300];
    let (total, at) = (lengths.iter().sum(), starts(&lengths, device)?);
    for (dtype, h, hk, d) in
        [(DType::F16, 4, 2, 64), (DType::BF16, 8, 1, 128), (DType::F16, 2, 2, 256), (DType::BF16, 2, 1, 512)]
    {
        let scale = 1.0 / (d as f32).sqrt();
        let random = |heads| Tensor::randn(0f32, 1., (total, heads, d), device)?.to_dtype(dtype);
        let (q, k, v): (Tensor, Tensor, Tensor) = (random(h)?, random(hk)?, random(hk)?);
        let both = ferroflash_candle::flash_attn_varlen_with_lse(
            &q,
            &k,
            &v,
            &at,
            &at,
            300,
            300,
            &Attend::causal(scale),
        );
        let error = both.and_then(|(o, lse)| {
            let (mut most, mut row) = (0f32, 0);
            for &length in lengths.iter().filter(|length| **length > 0) {
                let part = |x: &Tensor| x.narrow(0, row, length);
                let (expected, sums) = Reference::causal(scale).run(&part(&q)?, &part(&k)?, &part(&v)?)?;
                most = most.max(furthest(&part(&o)?, &expected)?);
                most = most.max(0.1 * furthest(&lse.narrow(1, row, length)?, &sums)?);
                row += length;
            }
            Ok(most)
        });
        tally.say(&format!("varlen {dtype:?} h{h}/{hk} d{d}"), error, allowed(dtype));
        // Padding rows before the first sequence and after the last one. A merge gives these padding rows no
        // weight.
        let two = Tensor::new(&[3u32, 9, 20], device)?;
        let attend = Attend::causal(scale);
        let both = ferroflash_candle::flash_attn_varlen_with_lse(&q, &k, &v, &two, &two, 11, 11, &attend);
        let error = both.and_then(|(o, lse)| {
            let mut wrong = 0;
            for (first, rows) in [(0, 3), (20, total - 20)] {
                let o = o.narrow(0, first, rows)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
                let lse = lse.narrow(1, first, rows)?.flatten_all()?.to_vec1::<f32>()?;
                wrong += o.iter().filter(|x| **x != 0.0).count();
                wrong += lse.iter().filter(|x| **x != f32::NEG_INFINITY).count();
            }
            Ok(wrong as f32)
        });
        tally.say(&format!("padding rows {dtype:?} h{h}/{hk} d{d}"), error, 0.0);
        let (q, k, v) = (
            q.narrow(0, 0, 135)?.unsqueeze(0)?,
            k.narrow(0, 0, 200)?.unsqueeze(0)?,
            v.narrow(0, 0, 200)?.unsqueeze(0)?,
        );
        let sinks = Tensor::randn(0f32, 1., h, device)?;
        let attend = Attend::causal(scale).sinks(&sinks);
        let error = ferroflash_candle::flash_attn_with_lse(&q, &k, &v, &attend).and_then(|(o, lse)| {
            let reference = Reference { sinks: Some(sinks.clone()), ..Reference::causal(scale) };
            let (expected, sums) = reference.run(&q.get(0)?, &k.get(0)?, &v.get(0)?)?;
            Ok(furthest(&o.get(0)?, &expected)?.max(0.1 * furthest(&lse.get(0)?, &sums)?))
        });
        tally.say(&format!("sinks and lse {dtype:?} h{h}/{hk} d{d}"), error, allowed(dtype));
    }
    Ok(())
}

/// Checks paged KV caches: appends in steps, prompts in chunks, decode, e4m3, ranges.
pub fn pages(device: &Device, tally: &mut Tally) -> Result<()> {
    for (dtype, e4m3, page, h, hk, d) in [
        (DType::F16, false, 16, 8, 2, 64),
        (DType::BF16, false, 32, 8, 8, 128),
        (DType::F16, false, 7, 4, 1, 128),
        (DType::BF16, false, 64, 4, 2, 256),
        (DType::BF16, false, 32, 4, 2, 512),
        (DType::F16, true, 16, 8, 2, 128),
    ] {
        let (shape, scales) = ((200, page, hk, d), CacheScales { keys: 0.02, values: 0.02 });
        let mut cache = match e4m3 {
            true => KvCache::e4m3(shape, scales, device)?,
            false => KvCache::new(shape, dtype, device)?,
        };
        let mut pool = PagePool::new(200, page);
        let mut step = Step::new(8, 600, 80, page, device)?;
        let mut sequences: Vec<_> = (0..3).map(|_| Sequence::new()).collect();
        // All keys and values of each sequence. Every step takes its keys and values from these tensors.
        let all: Vec<[Tensor; 2]> = (0..3)
            .map(|_| -> Result<_> {
                let one = || Tensor::randn(0f32, 1., (500, hk, d), device)?.to_dtype(dtype);
                Ok([one()?, one()?])
            })
            .collect::<Result<_>>()?;
        let scale = 1.0 / (d as f32).sqrt();
        let steps = [[100, 7, 33], [1, 1, 1], [1, 50, 20], [2, 2, 2], [1, 1, 90], [1, 1, 1]];
        for counts in &steps {
            let q: Tensor = Tensor::randn(0f32, 1., (counts.iter().sum(), h, d), device)?.to_dtype(dtype)?;
            let taken = |which: usize| {
                let parts = (0..3).map(|b| all[b][which].narrow(0, sequences[b].keys(), counts[b]));
                Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)
            };
            let (k, v) = (taken(0)?, taken(1)?);
            for (sequence, tokens) in sequences.iter_mut().zip(counts) {
                pool.grow(sequence, *tokens)?;
            }
            let now: Vec<_> = sequences.iter().zip(counts.iter().copied()).collect();
            step.set(&now)?;
            cache.append(&k, &v, &step)?;
            let error = cache.attend_with_lse(&q, &step, &Attend::causal(scale)).and_then(|(o, lse)| {
                let (mut most, mut row) = (0f32, 0);
                for (b, &count) in counts.iter().enumerate() {
                    let [k, v] = [0, 1].map(|i| all[b][i].narrow(0, 0, sequences[b].keys() + count));
                    let (expected, sums) =
                        Reference::causal(scale).run(&q.narrow(0, row, count)?, &k?, &v?)?;
                    most = most.max(furthest(&o.narrow(0, row, count)?, &expected)?);
                    most = most.max(0.1 * furthest(&lse.narrow(1, row, count)?, &sums)?);
                    row += count;
                }
                Ok(most)
            });
            for (sequence, tokens) in sequences.iter_mut().zip(counts) {
                sequence.advance(*tokens);
            }
            let name = format!("cache {dtype:?} e4m3 {e4m3} page {page} h{h}/{hk} d{d} step {counts:?}");
            tally.say(&name, error, if e4m3 { 0.2 } else { allowed(dtype) });
        }
    }
    ranges(device, tally)
}

/// Checks two sequences with unsorted ranges, of which one range is empty. The second sequence's queries
/// begin in the middle of its keys.
fn ranges(device: &Device, tally: &mut Tally) -> Result<()> {
    let (dtype, page, h, hk, d) = (DType::BF16, 32, 4, 2, 128);
    let (rows, keys, scale) = ([200, 90], [200, 150], 0.1);
    let random = |rows: usize, heads| Tensor::randn(0f32, 1., (rows, heads, d), device)?.to_dtype(dtype);
    let q: Tensor = random(290, h)?;
    let pool = [random(20 * page, hk)?, random(20 * page, hk)?];
    let table: Vec<u32> = (0..14).map(|i| (i * 3 % 20) as u32).collect();
    let of = [[(30, 90), (120, 121), (5, 5)], [(100, 140), (10, 30), (50, 70)]];
    let numbers: Vec<i32> = of.iter().flatten().flat_map(|(s, e)| [*s as i32, *e as i32]).collect();
    let [seqlens_q, seqlens_k] = [starts(&rows, device)?, starts(&keys, device)?];
    let pages = pool.clone().map(|pool| pool.reshape((20, page, hk, d)));
    let [k, v] = pages;
    let o = ferroflash_candle::flash_attn_varlen_paged_windowed(
        &q,
        &k?,
        &v?,
        &seqlens_q,
        &seqlens_k,
        &Tensor::from_vec(table.clone(), (2, 7), device)?,
        Some(&Tensor::from_vec(numbers, (2, 3, 2), device)?),
        200,
        200,
        scale,
        None,
        Some(0),
        page,
        None,
    );
    let error = o.and_then(|o| {
        let (mut most, mut row) = (0f32, 0);
        for b in 0..2 {
            let places: Vec<u32> =
                (0..keys[b]).map(|j| table[b * 7 + j / page] * page as u32 + (j % page) as u32).collect();
            let places = Tensor::from_vec(places, keys[b], device)?;
            let reference = Reference { ranges: of[b].to_vec(), ..Reference::causal(scale) };
            let [k, v] = [pool[0].index_select(&places, 0)?, pool[1].index_select(&places, 0)?];
            let expected = reference.run(&q.narrow(0, row, rows[b])?, &k, &v)?.0;
            most = most.max(furthest(&o.narrow(0, row, rows[b])?, &expected)?);
            row += rows[b];
        }
        Ok(most)
    });
    tally.say("mm_prefix_ranges", error, allowed(dtype));
    Ok(())
}

/// Checks that each invalid call returns an error with the reason, and no tensor.
pub fn refusals(device: &Device, tally: &mut Tally) -> Result<()> {
    use ferroflash_candle::*;
    let q = Tensor::zeros((1, 64, 2, 64), DType::F32, device)?;
    let half = q.to_dtype(DType::F16)?;
    let flat = half.squeeze(0)?;
    let seqlens = Tensor::new(&[0u32, 64], device)?;
    let slopes = Tensor::new(&[1f32, 0.5, 0.25], device)?;
    let on_cpu = half.to_device(&Device::Cpu)?;
    for (what, result) in [
        ("f32", flash_attn(&q, &q, &q, 1., true)),
        ("scale 0", flash_attn(&half, &half, &half, 0., true)),
        ("slopes of other heads", flash_attn_alibi(&half, &half, &half, &slopes, 1., true)),
        ("on the CPU", flash_attn(&on_cpu, &on_cpu, &on_cpu, 1., true)),
        ("last dim not contiguous", half.transpose(1, 3).and_then(|x| flash_attn(&x, &x, &x, 1., true))),
        ("three dimensions", flash_attn(&flat, &flat, &flat, 1., true)),
        ("seqlens of f16", flash_attn_varlen(&flat, &flat, &flat, &flat, &seqlens, 64, 64, 1., true)),
    ] {
        let error = match result {
            Ok(_) => Err(candle::Error::Msg("it gave a tensor".into())),
            Err(e) => {
                println!("       {}", e.to_string().lines().next().unwrap_or_default());
                Ok(0.0)
            }
        };
        tally.say(&format!("refused: {what}"), error, 0.0);
    }
    Ok(())
}

/// Checks a small model's logits after prompts in chunks. The error of these logits against f32 must be at
/// most twice the plain path's error.
pub fn logits(device: &Device, tally: &mut Tally) -> Result<()> {
    let model = Model::random(Config::SMALL, 4096, device)?;
    let exact = model.exact()?;
    let text = tokens(2100, model.config.vocabulary, device)?;
    for chunks in [&[1usize, 1, 1][..], &[7, 1, 1], &[129, 100, 1, 1], &[1000, 1000, 1, 1]] {
        let run = |model: &Model, side: Side| -> Result<Vec<Tensor>> {
            let (mut pool, mut sequence) = (PagePool::new(80, 32), Sequence::new());
            let mut caches = model.caches(80, 32)?;
            let mut step = Step::new(1, 2100, 80, 32, device)?;
            let mut all = Vec::new();
            for &count in chunks {
                pool.grow(&mut sequence, count)?;
                step.set(&[(&sequence, count)])?;
                let shared = Some(Shared::new(&step, vec![(count, sequence.keys() + count)])?);
                let tokens = text.narrow(0, sequence.keys(), count)?;
                all.push(model.forward(side, &tokens, &step, shared.as_ref(), Some(&mut caches), false)?);
                sequence.advance(count);
            }
            Ok(all)
        };
        // The f32 model has no cache, so it computes each text from the start.
        let mut expected = Vec::new();
        let mut keys = 0;
        for &count in chunks {
            keys += count;
            let (mut pool, mut sequence) = (PagePool::new(80, 32), Sequence::new());
            pool.grow(&mut sequence, keys)?;
            let mut step = Step::new(1, keys, 80, 32, device)?;
            step.set(&[(&sequence, keys)])?;
            let shared = Some(Shared::new(&step, vec![(keys, keys)])?);
            expected.push(exact.forward(
                Side::Plain,
                &text.narrow(0, 0, keys)?,
                &step,
                shared.as_ref(),
                None,
                true,
            )?);
        }
        let (ours, plain) = (run(&model, Side::Ours)?, run(&model, Side::Plain)?);
        for (i, expected) in expected.iter().enumerate() {
            let rule = 2.0 * furthest(&plain[i], expected)? + 1e-3;
            tally.say(&format!("logits of {chunks:?}, step {i}"), furthest(&ours[i], expected), rule);
        }
    }
    Ok(())
}

/// Runs all checks.
pub fn all(device: &Device) -> Result<bool> {
    let mut tally = Tally::default();
    for part in [dense, varlen, pages, graph::graph, refusals, logits] {
        if let Err(e) = part(device, &mut tally) {
            tally.say("a part ended early", Err(e), 0.0);
        }
    }
    Ok(tally.end())
}
