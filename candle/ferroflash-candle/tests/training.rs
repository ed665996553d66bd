//! Gradients on the CPU: against candle's gradients of plain attention, and against finite differences.
//! Gradients on a GPU: against those on the CPU.
use candle::{D, DType, Device, Error, Result, Tensor, Var};
use ferroflash_candle as ff;

/// Numbers between -1 and 1, other ones for each seed.
fn numbers(shape: [usize; 4], seed: u64) -> Result<Tensor> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    Tensor::from_iter((0..shape.iter().product()).map(next), &Device::Cpu)?.reshape(&shape[..])
}

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Batch, queries, keys, query heads, key heads.
    sizes: [usize; 5],
    window: [Option<usize>; 2],
    softcap: f32,
    alibi: bool,
}

const SCALE: f32 = 0.4;
const CAUSAL: [Option<usize>; 2] = [None, Some(0)];
const CASES: [Case; 7] = [
    Case { sizes: [2, 5, 7, 4, 2], window: [None, None], softcap: 0.0, alibi: false },
    Case { sizes: [1, 6, 6, 2, 2], window: CAUSAL, softcap: 0.0, alibi: false },
    Case { sizes: [1, 4, 9, 3, 1], window: CAUSAL, softcap: 0.0, alibi: false },
    Case { sizes: [2, 8, 8, 2, 1], window: [Some(2), Some(1)], softcap: 0.0, alibi: false },
    Case { sizes: [1, 6, 6, 2, 2], window: CAUSAL, softcap: 1.5, alibi: false },
    Case { sizes: [1, 5, 8, 4, 2], window: CAUSAL, softcap: 0.0, alibi: true },
    // The first queries see no key.
    Case { sizes: [1, 9, 4, 2, 1], window: CAUSAL, softcap: 0.0, alibi: false },
];

impl Case {
    fn inputs(&self) -> Result<[Var; 3]> {
        let [batch, queries, keys, heads, key_heads] = self.sizes;
        let (q, k) = ([batch, queries, heads, 8], [batch, keys, key_heads, 8]);
        Ok([
            Var::from_tensor(&numbers(q, 1)?)?,
            Var::from_tensor(&numbers(k, 2)?)?,
            Var::from_tensor(&numbers(k, 3)?)?,
        ])
    }

    fn slopes(&self) -> Result<Option<Tensor>> {
        let heads = self.sizes[3];
        let slopes = Tensor::from_iter((0..heads).map(|head| 0.1 * head as f32), &Device::Cpu)?;
        Ok(self.alibi.then_some(slopes))
    }

    fn flash(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let [left, right] = self.window;
        let slopes = self.slopes()?.map(|slopes| slopes.to_device(q.device())).transpose()?;
        ff::flash_attn_alibi_windowed_softcap(q, k, v, slopes.as_ref(), SCALE, left, right, self.softcap)
    }

    /// Attention of candle's operations, whose gradients are candle's.
    fn plain(&self, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let [batch, queries, keys, heads, key_heads] = self.sizes;
        let wide = |x: &Tensor| {
            let x = x.transpose(1, 2)?.unsqueeze(2)?.broadcast_as((
                batch,
                key_heads,
                heads / key_heads,
                keys,
                8,
            ))?;
            x.reshape((batch, heads, keys, 8))?.contiguous()
        };
        let scores = (q.transpose(1, 2)?.contiguous()?.matmul(&wide(k)?.t()?)? * f64::from(SCALE))?;
        let scores = match f64::from(self.softcap) {
            0.0 => scores,
            cap => ((scores / cap)?.tanh()? * cap)?,
        };
        let (mut added, [left, right]) = (Vec::new(), self.window);
        let slopes = self.slopes()?.map_or(Ok(vec![0.0; heads]), |slopes| slopes.to_vec1::<f32>())?;
        for (slope, i, j) in slopes
            .iter()
            .flat_map(|slope| (0..queries).flat_map(move |i| (0..keys).map(move |j| (slope, i, j))))
        {
            let distance = (i + keys) as i64 - queries as i64 - j as i64;
            let hidden = left.is_some_and(|left| distance > left as i64)
                || right.is_some_and(|right| -distance > right as i64);
            added.push(if hidden { -1e30 } else { -slope * distance.abs() as f32 });
        }
        let added = Tensor::from_vec(added, (1, heads, queries, keys), &Device::Cpu)?;
        let scores = scores.broadcast_add(&added)?;
        let shifted = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let p = shifted.broadcast_div(&shifted.sum_keepdim(D::Minus1)?)?;
        // A row that sees no key is 0.
        let seen = added.ge(-1e29)?.to_dtype(DType::F32)?.max_keepdim(D::Minus1)?;
        p.matmul(&wide(v)?)?.broadcast_mul(&seen)?.transpose(1, 2)
    }

    /// The loss of an O.
    fn loss(o: &Tensor) -> Result<Tensor> {
        let shape = o.dims4()?;
        (o * numbers(shape.into(), 4)?)?.sum_all()
    }
}

fn largest_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

#[test]
fn gradients_are_candles() -> Result<()> {
    for case in CASES {
        let vars = case.inputs()?;
        let [q, k, v] = vars.each_ref().map(Var::as_tensor);
        let (flash, plain) = (case.flash(q, k, v)?, case.plain([q, k, v])?);
        assert!(largest_difference(&flash, &plain)? <= 1e-5, "{case:?}");
        let (flash, plain) = (Case::loss(&flash)?.backward()?, Case::loss(&plain)?.backward()?);
        for (name, var) in ["q", "k", "v"].into_iter().zip(&vars) {
            let [flash, plain] = [&flash, &plain].map(|gradients| gradients.get(var).expect("a gradient"));
            let difference = largest_difference(flash, plain)?;
            assert!(difference <= 1e-5, "{case:?}: d{name} differs by {difference}");
        }
    }
    Ok(())
}

#[test]
fn gradients_are_slopes() -> Result<()> {
    const STEP: f32 = 1e-2;
    for case in CASES {
        let vars = case.inputs()?;
        let [q, k, v] = vars.each_ref().map(|var| var.as_tensor().clone());
        let gradients = Case::loss(&case.flash(&q, &k, &v)?)?.backward()?;
        for (n, var) in vars.iter().enumerate() {
            let shape: [usize; 4] = var.dims4()?.into();
            let direction = numbers(shape, 5)?;
            let moved = |step: f32| {
                let mut inputs = [q.detach(), k.detach(), v.detach()];
                inputs[n] = (&inputs[n] + (&direction * f64::from(step))?)?;
                Case::loss(&case.flash(&inputs[0], &inputs[1], &inputs[2])?)?.to_scalar::<f32>()
            };
            let slope = (moved(STEP)? - moved(-STEP)?) / (2.0 * STEP);
            let gradient = gradients.get(var).expect("a gradient");
            let along = (gradient * &direction)?.sum_all()?.to_scalar::<f32>()?;
            assert!((slope - along).abs() <= 2e-3 * (1.0 + slope.abs()), "{case:?}: {n}: {slope}, {along}");
        }
    }
    Ok(())
}

/// Varlen sequences have the gradients of their own attention. Rows of no sequence have none.
#[test]
fn varlen_gradients_are_those_of_sequences() -> Result<()> {
    let all = [numbers([1, 12, 4, 8], 1)?, numbers([1, 10, 2, 8], 2)?, numbers([1, 10, 2, 8], 3)?];
    let vars = [
        Var::from_tensor(&all[0].squeeze(0)?)?,
        Var::from_tensor(&all[1].squeeze(0)?)?,
        Var::from_tensor(&all[2].squeeze(0)?)?,
    ];
    let (of_q, of_k) = ([1u32, 4, 9], [0u32, 5, 10]);
    let offsets = |starts: [u32; 3]| Tensor::new(&starts, &Device::Cpu);
    let [q, k, v] = vars.each_ref().map(Var::as_tensor);
    let varlen = |max_q| {
        ff::flash_attn_varlen_windowed(
            q,
            k,
            v,
            &offsets(of_q)?,
            &offsets(of_k)?,
            max_q,
            5,
            SCALE,
            Some(3),
            Some(0),
        )
    };
    let gradients = Case::loss(&varlen(5)?.unsqueeze(0)?)?.backward()?;
    let mut expected = all.each_ref().map(|tensor| vec![tensor.zeros_like()]);
    let weights = numbers([1, 12, 4, 8], 4)?;
    for sequence in 0..2 {
        let rows = [&of_q, &of_k, &of_k].map(|starts| starts.map(|start| start as usize));
        let rows = rows.map(|starts| [starts[sequence], starts[sequence + 1] - starts[sequence]]);
        let part = |n: usize| Var::from_tensor(&all[n].narrow(1, rows[n][0], rows[n][1])?.contiguous()?);
        let parts = [part(0)?, part(1)?, part(2)?];
        let [q, k, v] = parts.each_ref().map(Var::as_tensor);
        let o = ff::flash_attn_windowed(q, k, v, SCALE, Some(3), Some(0))?;
        let of_part = (o * weights.narrow(1, rows[0][0], rows[0][1])?)?.sum_all()?.backward()?;
        for (n, part) in parts.iter().enumerate() {
            let gradient = of_part.get(part).expect("a gradient");
            let [start, count] = rows[n];
            let end = all[n].dims()[1] - start - count;
            expected[n].push(gradient.pad_with_zeros(1, start, end));
        }
    }
    for (var, parts) in vars.iter().zip(expected) {
        let sum = parts.into_iter().reduce(|a, b| a? + b?).expect("two sequences")?;
        let gradient = gradients.get(var).expect("a gradient").unsqueeze(0)?;
        assert!(largest_difference(&gradient, &sum)? <= 1e-6);
    }
    refused(varlen(4), "invalid seqlens_q");
    Ok(())
}

#[test]
fn half_types() -> Result<()> {
    let case = CASES[1];
    let exact = case.inputs()?;
    let [q, k, v] = exact.each_ref().map(Var::as_tensor);
    let exact_gradients = Case::loss(&case.flash(q, k, v)?)?.backward()?;
    for (dtype, tolerance) in [(DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let [q, k, v] = [q.to_dtype(dtype)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?];
        let o = case.flash(&q, &k, &v)?;
        assert_eq!(o.dtype(), dtype);
        let gradients = Case::loss(&o.to_dtype(DType::F32)?)?.backward()?;
        for var in &exact {
            let [rounded, exact] = [&gradients, &exact_gradients].map(|g| g.get(var).expect("a gradient"));
            let difference = largest_difference(rounded, exact)?;
            assert!(difference <= tolerance, "{dtype:?}: {difference}");
        }
    }
    Ok(())
}

/// A function of Q, K and V.
#[cfg(all(feature = "cuda", feature = "training"))]
type Flash<'a> = &'a dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// Checks that the gradients on a GPU are those on the CPU, within the roundings of the type, and have
/// identical bits in a repeated backward pass. K and V are heads of one tensor, so both are views with
/// strides. `of_q` and `of_k` are the shapes of Q and K.
#[cfg(all(feature = "cuda", feature = "training"))]
fn agree(gpu: &Device, of_q: &[usize], of_k: &[usize], flash: Flash<'_>, what: &str) -> Result<()> {
    let (heads, of_heads) = (of_k.len() - 2, of_k[of_k.len() - 2]);
    let of_kv: Vec<_> = of_k.iter().enumerate().map(|(at, n)| n << usize::from(at == heads)).collect();
    let drawn = |shape: &[usize], seed| numbers([1, 1, 1, shape.iter().product()], seed)?.reshape(shape);
    for (dtype, tolerance) in [(DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let [q, kv, weights] = [drawn(of_q, 1)?, drawn(&of_kv, 2)?, drawn(of_q, 3)?];
        let gradients = |device: &Device, of: DType| {
            let on = |x: &Tensor| x.to_dtype(dtype)?.to_dtype(of)?.to_device(device);
            let vars = [Var::from_tensor(&on(&q)?)?, Var::from_tensor(&on(&kv)?)?];
            let [k, v] = [0, of_heads].map(|start| vars[1].narrow(heads, start, of_heads));
            let o = flash(&vars[0], &k?, &v?)?.to_dtype(DType::F32)?;
            let all = (o * on(&weights)?.to_dtype(DType::F32)?)?.sum_all()?.backward()?;
            let on_cpu = |var: &Var| all.get(var).expect("a gradient").to_device(&Device::Cpu);
            vars.iter().map(|var| on_cpu(var)?.to_dtype(DType::F32)).collect::<Result<Vec<_>>>()
        };
        let (exact, found) = (gradients(&Device::Cpu, DType::F32)?, gradients(gpu, dtype)?);
        let again = gradients(gpu, dtype)?;
        for (n, name) in ["dq", "dk and dv"].into_iter().enumerate() {
            let largest = exact[n].abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
            let difference = largest_difference(&found[n], &exact[n])?;
            assert!(
                difference <= tolerance * largest,
                "{what}, {of_q:?}, {dtype:?}: {name} differs by {difference} of {largest}"
            );
            let same = largest_difference(&found[n], &again[n])?;
            assert_eq!(same, 0.0, "{what}, {of_q:?}, {dtype:?}: {name} has other bits");
        }
    }
    Ok(())
}

#[cfg(all(feature = "cuda", feature = "training"))]
#[test]
#[ignore = "needs a GPU: cargo xtask candle gpu-pack"]
fn gradients_on_a_gpu() -> Result<()> {
    let gpu = Device::new_cuda(0)?;
    let base = Case { sizes: [2, 150, 200, 4, 2], window: CAUSAL, softcap: 0.0, alibi: false };
    let cases = [
        base,
        Case { window: [None, None], ..base },
        Case { window: [Some(30), Some(5)], ..base },
        Case { softcap: 1.5, ..base },
        Case { alibi: true, ..base },
        Case { sizes: [1, 257, 120, 6, 1], ..base },
    ];
    for (case, columns) in cases.iter().flat_map(|case| [64, 128].map(|columns| (case, columns))) {
        let [batch, queries, keys, heads, key_heads] = case.sizes;
        let (of_q, of_k) = ([batch, queries, heads, columns], [batch, keys, key_heads, columns]);
        agree(&gpu, &of_q, &of_k, &|q, k, v| case.flash(q, k, v), &format!("{case:?}"))?;
    }
    // The operation keeps no LSE. Its gradient computes the forward again.
    let alone = |q: &Tensor, k: &Tensor, v: &Tensor| {
        let [window_size_left, window_size_right] = [Some(30), Some(0)];
        let (alibi_slopes, softcap) = (None, None);
        let softmax_scale = SCALE;
        let operation =
            ff::FlashAttn { softmax_scale, alibi_slopes, window_size_left, window_size_right, softcap };
        q.apply_op3(k, v, operation)
    };
    agree(&gpu, &[1, 70, 2, 64], &[1, 90, 1, 64], &alone, "FlashAttn")
}

/// Varlen sequences: some without queries or keys, rows before the first one and after the last one.
#[cfg(all(feature = "cuda", feature = "training"))]
#[test]
#[ignore = "needs a GPU: cargo xtask candle gpu-pack"]
fn varlen_gradients_on_a_gpu() -> Result<()> {
    let gpu = Device::new_cuda(0)?;
    let offsets = [[3u32, 4, 154, 154, 180, 210], [0u32, 70, 270, 273, 273, 300]];
    let [max_q, max_k] = [150, 200];
    let (full, none) = ([None, None], None::<&Tensor>);
    for (columns, [heads, key_heads]) in [(64, [4, 2]), (128, [2, 2]), (72, [3, 1])] {
        let slopes = Tensor::from_iter((0..heads).map(|head| 0.1 * head as f32), &Device::Cpu)?;
        let cases = [
            (full, 0.0, none),
            (CAUSAL, 0.0, none),
            ([Some(30), Some(5)], 0.0, none),
            (CAUSAL, 1.5, none),
            (CAUSAL, 0.0, Some(&slopes)),
        ];
        for ([left, right], softcap, slopes) in cases {
            let flash = |q: &Tensor, k: &Tensor, v: &Tensor| {
                let on = |x: &Tensor| x.to_device(q.device());
                let starts = |of: usize| Tensor::new(&offsets[of], q.device());
                let (of_q, of_k) = (starts(0)?, starts(1)?);
                let slopes = slopes.map(on).transpose()?;
                ff::flash_attn_varlen_alibi_windowed_softcap(
                    q,
                    k,
                    v,
                    slopes.as_ref(),
                    &of_q,
                    &of_k,
                    max_q,
                    max_k,
                    SCALE,
                    left,
                    right,
                    softcap,
                )
            };
            let what =
                format!("varlen, window {left:?} {right:?}, softcap {softcap}, slopes {}", slopes.is_some());
            agree(&gpu, &[215, heads, columns], &[310, key_heads, columns], &flash, &what)?;
        }
    }
    Ok(())
}

fn refused<T>(result: Result<T>, words: &str) {
    let text = match result.err().expect("it is refused") {
        Error::WithBacktrace { inner, .. } => inner.to_string(),
        other => other.to_string(),
    };
    assert!(text.contains(words), "{text}; not {words}");
}

#[test]
fn refusals() -> Result<()> {
    let [q, k, v] = CASES[0].inputs()?.map(|var| var.detach());
    refused(ff::flash_attn(&q, &k.narrow(3, 0, 4)?, &v, SCALE, true), "invalid k");
    refused(ff::flash_attn(&q, &k, &v.narrow(1, 0, 4)?, SCALE, true), "invalid v");
    refused(ff::flash_attn(&q.get(0)?, &k, &v, SCALE, true), "invalid q");
    refused(ff::flash_attn(&q, &k, &v, 0.0, true), "invalid softmax_scale");
    refused(ff::flash_attn(&q, &k.to_dtype(DType::F16)?, &v, SCALE, true), "invalid k");
    let few = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    refused(ff::flash_attn_alibi(&q, &k, &v, &few, SCALE, true), "invalid alibi_slopes");
    let slopes = Var::from_tensor(&Tensor::zeros(4, DType::F32, &Device::Cpu)?)?;
    refused(ff::flash_attn_alibi(&q, &k, &v, &slopes, SCALE, true), "invalid alibi_slopes: a tensor with a");
    let operation = ff::FlashAttn {
        softmax_scale: SCALE,
        alibi_slopes: Some(slopes.as_tensor().clone()),
        window_size_left: None,
        window_size_right: None,
        softcap: None,
    };
    refused(q.apply_op3(&k, &v, operation), "invalid alibi_slopes: a tensor with a gradient");
    let starts = |starts: [i32; 2]| Tensor::new(&starts, &Device::Cpu);
    let [q, k, v] = [q.get(0)?, k.get(0)?, v.get(0)?];
    for of_q in [[0, 6], [3, 2], [-1, 5]] {
        let outcome = ff::flash_attn_varlen(&q, &k, &v, &starts(of_q)?, &starts([0, 7])?, 9, 9, SCALE, true);
        refused(outcome, "invalid seqlens_q");
    }
    Ok(())
}
