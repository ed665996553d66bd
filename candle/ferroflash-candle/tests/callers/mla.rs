//! The calls of mistral.rs 0.9.2 in mistralrs-core/src/mla/forward.rs, on a latent cache.
use candle::{D, DType, Device, Result, Tensor};
use ferroflash_candle::{
    Attend, LatentCache, LatentScale, ListedKv, PagePool, PagedKv, RotaryStyle, RotaryTable, Sequence, Step,
    append_latent, append_latent_scaled,
};

/// A latent cache, `(blocks, block, 1, 576)`. It replaces mistral.rs' two caches, `(blocks, block, 512)` and
/// `(blocks, block, 64)`.
struct Latents<'a> {
    rows: &'a Tensor,
    tables: &'a Tensor,
}

impl Latents<'_> {
    /// Replaces the call of `concat_and_cache_mla`.
    fn write(&self, ckv: &Tensor, k_pe: &Tensor, slots: &Tensor) -> Result<()> {
        append_latent(&Tensor::cat(&[ckv, k_pe], 1)?, self.rows, ckv.dim(1)?, slots)
    }

    /// Replaces the call of `flashinfer_mla_decode`. Tables and lengths suffice, so the seven tensors of
    /// FlashInfer's plan are not needed.
    fn decode(&self, ql_nope: &Tensor, q_pe: &Tensor, context_lens: &Tensor, scale: f32) -> Result<Tensor> {
        let q = Tensor::cat(&[ql_nope, q_pe], 2)?.unsqueeze(1)?;
        let values = self.rows.narrow(3, 0, ql_nope.dim(2)?)?;
        let cache = PagedKv::new(self.rows, &values, self.tables, context_lens);
        cache.attend(&q, &Attend::causal(scale))?.squeeze(1)
    }
}

const LATENT: usize = 512;
const ROTARY: usize = 64;

fn random(shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(DType::BF16)
}

/// Computes attention of `q`, `(heads, columns)`, on `rows`, `(keys, columns)`, by its definition in f32.
/// Returns O, and the LSE of each head.
fn plain(q: &Tensor, rows: &Tensor, scale: f32) -> Result<(Tensor, Vec<f32>)> {
    let [q, rows] = [q.to_dtype(DType::F32)?, rows.to_dtype(DType::F32)?];
    let scores = (q.matmul(&rows.t()?)? * f64::from(scale))?;
    let shares = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    let shares = shares.broadcast_div(&shares.sum_keepdim(D::Minus1)?)?;
    Ok((shares.matmul(&rows.narrow(1, 0, LATENT)?.contiguous()?)?, scores.log_sum_exp(1)?.to_vec1()?))
}

/// Turns the last columns of `x`, `(.., columns)`, in neighbouring pairs by the angles of one position.
fn turned(x: &Tensor, angles: &[f32]) -> Result<Tensor> {
    let (columns, device) = (x.dim(D::Minus1)?, x.device());
    let shape = [x.dims(), &[1][..]].concat();
    let mut turn = vec![0f32; columns * columns];
    for at in 0..columns {
        turn[at * columns + at] = 1.0;
    }
    for (pair, angle) in angles.iter().enumerate() {
        let at = columns - 2 * angles.len() + 2 * pair;
        for (row, column, factor) in
            [(0, 0, angle.cos()), (0, 1, angle.sin()), (1, 0, -angle.sin()), (1, 1, angle.cos())]
        {
            turn[(at + row) * columns + at + column] = factor;
        }
    }
    let turn = Tensor::from_vec(turn, (columns, columns), device)?;
    let flat = x.to_dtype(DType::F32)?.reshape(((), columns))?.matmul(&turn)?;
    flat.reshape(&shape[..shape.len() - 1])?.to_dtype(DType::BF16)
}

fn far(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a.to_dtype(DType::F32)? - b.to_dtype(DType::F32)?)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

#[test]
fn mistralrs_latent_caches() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let (blocks, block, heads, scale) = (40, 16, 16, 192f32.sqrt().recip());
    let lengths = [5usize, 33, 64];
    let rows = Tensor::zeros((blocks, block, 1, LATENT + ROTARY), DType::BF16, &device)?;
    // Sequence `b` has blocks 37 - b, 33 - b, and so on, which are neither in order nor adjacent.
    let table: Vec<u32> = (0..3).flat_map(|b| (0..4).map(move |column| 37 - b - 4 * column)).collect();
    let slots: Vec<i64> = (0..3)
        .flat_map(|b| (0..lengths[b]).map(move |key| (b, key)))
        .map(|(b, key)| i64::from(table[b * 4 + key / block]) * block as i64 + (key % block) as i64)
        .collect();
    let tables = Tensor::from_vec(table, (3, 4), &device)?;
    let cache = Latents { rows: &rows, tables: &tables };
    let total = lengths.iter().sum();
    let (ckv, k_pe) = (random(&[total, LATENT], &device)?, random(&[total, ROTARY], &device)?);
    cache.write(&ckv, &k_pe, &Tensor::new(slots, &device)?)?;
    let (ql_nope, q_pe) = (random(&[3, heads, LATENT], &device)?, random(&[3, heads, ROTARY], &device)?);
    let context = Tensor::new(lengths.map(|keys| keys as u32).to_vec(), &device)?;
    let found = cache.decode(&ql_nope, &q_pe, &context, scale)?;
    assert_eq!(found.dims(), [3, heads, LATENT]);
    let (q, all) = (Tensor::cat(&[&ql_nope, &q_pe], 2)?, Tensor::cat(&[&ckv, &k_pe], 1)?);
    let mut first = 0;
    for (b, keys) in lengths.into_iter().enumerate() {
        let apart = far(&found.get(b)?, &plain(&q.get(b)?, &all.narrow(0, first, keys)?, scale)?.0)?;
        assert!(apart <= 3e-2, "sequence {b}: {apart}");
        first += keys;
    }
    Ok(())
}

/// A sequence grows by one token per step, and each step rotates its row and its query.
#[test]
fn latent_caches_of_steps() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let (page, heads, scale, tokens) = (16, 16, 192f32.sqrt().recip(), 20);
    let mut cache = LatentCache::new((4, page, LATENT + ROTARY), LATENT, DType::BF16, &device)?;
    let (mut pool, mut sequence) = (PagePool::new(4, page), Sequence::new());
    let mut step = Step::new(1, 1, 4, page, &device)?;
    let angle = |at: usize| (0..ROTARY / 2).map(move |pair| at as f32 * 0.9f32.powi(pair as i32));
    let table = |part: fn(f32) -> f32| {
        Tensor::from_iter((0..tokens).flat_map(angle).map(part), &device)?.reshape((tokens, ROTARY / 2))
    };
    let table = RotaryTable { cos: table(f32::cos)?, sin: table(f32::sin)?, style: RotaryStyle::Interleaved };
    let mut all = Vec::new();
    for at in 0..tokens {
        pool.grow(&mut sequence, 1)?;
        step.set(&[(&sequence, 1)])?;
        let row = random(&[1, LATENT + ROTARY], &device)?;
        let q = random(&[1, heads, LATENT + ROTARY], &device)?;
        let rotated = cache.append_rotary(&q, &row, &step, &table)?;
        let angles: Vec<f32> = angle(at).collect();
        all.push(turned(&row, &angles)?);
        let apart = far(&rotated, &turned(&q, &angles)?)?;
        assert!(apart <= 3e-2, "query {at}: {apart}");
        let (o, lse) = cache.attend_with_lse(&rotated, &step, &Attend::causal(scale))?;
        assert_eq!((o.dims(), lse.dims()), (&[1, heads, LATENT][..], &[heads, 1][..]));
        let (expected, sums) = plain(&rotated.get(0)?, &Tensor::cat(&all, 0)?, scale)?;
        let apart = far(&o.get(0)?, &expected)?;
        assert!(apart <= 3e-2, "token {at}: {apart}");
        for (found, expected) in lse.flatten_all()?.to_vec1::<f32>()?.into_iter().zip(sums) {
            assert!((found - expected).abs() <= 3e-2, "token {at}: {found}, {expected}");
        }
        sequence.advance(1);
    }
    Ok(())
}

/// Three queries have lists of slots of a cache of pages. The lists have entries that name no key, and a slot
/// twice. The third list names no key.
#[test]
fn lists_of_keys() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let (pages, page, heads, scale) = (6, 16, 16, 192f32.sqrt().recip());
    let rows = random(&[pages, page, 1, LATENT + ROTARY], &device)?;
    let q = random(&[3, heads, LATENT + ROTARY], &device)?;
    let lists = [vec![95, -1, 3, 17, 40, 3], vec![96, 8, 9, -7, i32::MAX, 0], vec![-1; 6]];
    let indices = Tensor::from_vec(lists.concat(), (3, 1, 6), &device)?;
    let keys = ListedKv::new(&rows, LATENT, &indices);
    let (o, lse) = keys.attend_with_lse(&q, &Attend::full(scale))?;
    assert_eq!((o.dims(), lse.dims()), (&[3, heads, LATENT][..], &[3, heads][..]));
    let flat = rows.reshape((pages * page, LATENT + ROTARY))?;
    for (i, list) in lists.iter().enumerate() {
        let there: Vec<u32> =
            list.iter().filter_map(|slot| u32::try_from(*slot).ok()).filter(|s| *s < 96).collect();
        let (found, sums) = (o.get(i)?, lse.get(i)?.to_vec1::<f32>()?);
        if there.is_empty() {
            assert!(sums.iter().all(|sum| *sum == f32::NEG_INFINITY), "{sums:?}");
            assert_eq!(far(&found, &found.zeros_like()?)?, 0.0);
            continue;
        }
        let (expected, right) =
            plain(&q.get(i)?, &flat.index_select(&Tensor::new(there, &device)?, 0)?, scale)?;
        let apart = far(&found, &expected)?;
        assert!(apart <= 3e-2, "query {i}: {apart}");
        for (found, expected) in sums.into_iter().zip(right) {
            assert!((found - expected).abs() <= 3e-2, "query {i}: {found}, {expected}");
        }
    }
    let of_sequences = ListedKv::new(&rows, LATENT, &indices)
        .attend_with_lse(&q.reshape((1, 3, heads, LATENT + ROTARY))?, &Attend::full(scale))?;
    assert_eq!(of_sequences.1.dims(), [1, heads, 3]);
    assert_eq!(far(&o, &of_sequences.0.squeeze(0)?)?, 0.0, "queries of a sequence");
    let of_flat = ListedKv::new(&flat.reshape((1, pages * page, 1, LATENT + ROTARY))?, LATENT, &indices)
        .attend(&q, &Attend::full(scale))?;
    assert_eq!(far(&o, &of_flat)?, 0.0, "a cache of one page");
    Ok(())
}

/// Compares attention on a cache of five pages of 16 keys with attention on `rows`, `(80, columns)`: of one
/// sequence with the pages in another order, and of a list of slots.
fn check_pages(cache: &Tensor, scale: LatentScale, rows: &Tensor) -> Result<()> {
    let (device, softmax) = (rows.device(), 192f32.sqrt().recip());
    let q = random(&[1, 16, LATENT + ROTARY], device)?;
    let order = [3u32, 1, 4, 0, 2];
    let table = Tensor::new(&[order], device)?;
    let lengths = Tensor::new(&[70u32], device)?;
    let values = cache.narrow(3, 0, LATENT)?;
    let paged = PagedKv::new(cache, &values, &table, &lengths).latent_scale(scale);
    let found = paged.attend(&q.unsqueeze(1)?, &Attend::causal(softmax))?.squeeze(1)?.get(0)?;
    let slots: Vec<u32> = (0..70).map(|key| order[key / 16] * 16 + key as u32 % 16).collect();
    let (expected, _) = plain(&q.get(0)?, &rows.index_select(&Tensor::new(slots, device)?, 0)?, softmax)?;
    let apart = far(&found, &expected)?;
    assert!(apart <= 3e-2, "pages, {scale:?}: {apart}");

    let list = [79i32, 5, -1, 17, 17];
    let indices = Tensor::new(&[[list]], device)?;
    let found = ListedKv::new(cache, LATENT, &indices).scale(scale).attend(&q, &Attend::full(softmax))?;
    let slots = Tensor::new(&[79u32, 5, 17, 17], device)?;
    let (expected, _) = plain(&q.get(0)?, &rows.index_select(&slots, 0)?, softmax)?;
    let apart = far(&found.get(0)?, &expected)?;
    assert!(apart <= 3e-2, "lists, {scale:?}: {apart}");
    Ok(())
}

/// Integers times the scale, which e4m3 has without an error.
#[test]
fn latents_of_e4m3() -> Result<()> {
    let (device, scale) = (Device::new_cuda(0)?, LatentScale::Number(0.25));
    let rows = (Tensor::randn(0f32, 3.0, (80, LATENT + ROTARY), &device)?.round()? * 0.25)?;
    let rows = rows.clamp(-4f32, 4f32)?.to_dtype(DType::BF16)?;
    let cache = Tensor::zeros((5, 16, 1, LATENT + ROTARY), DType::U8, &device)?;
    let slots = Tensor::arange(0i64, 80, &device)?;
    append_latent_scaled(&rows, &cache, LATENT, &slots, scale)?;
    check_pages(&cache, scale, &rows)
}

/// Rows of 656 bytes, whose numbers are powers of two.
#[test]
fn latents_with_scales_in_their_rows() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let (mut bytes, mut numbers) = (vec![], vec![]);
    // The bits of 0.5, 1, 2, -1, and 1.5 in e4m3.
    let all = [(0x30u8, 0.5f32), (0x38, 1.0), (0x40, 2.0), (0xb8, -1.0), (0x3c, 1.5)];
    for row in 0..80usize {
        let scales = [0.25f32, 0.5, 1.0, 2.0].map(|scale| if row % 3 == 0 { scale / 2.0 } else { scale });
        for column in 0..LATENT {
            let (bits, number) = all[(row * 7 + column * 3 + column / 11) % all.len()];
            bytes.push(bits);
            numbers.push(number * scales[column / 128]);
        }
        bytes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
        for column in 0..ROTARY {
            let number = half::bf16::from_f32((row + column) as f32 / 64.0 - 1.0);
            bytes.extend(number.to_le_bytes());
            numbers.push(number.to_f32());
        }
    }
    let cache = Tensor::from_vec(bytes, (5, 16, 1, 656), &device)?;
    let rows = Tensor::from_vec(numbers, (80, LATENT + ROTARY), &device)?.to_dtype(DType::BF16)?;
    check_pages(&cache, LatentScale::InRows, &rows)
}

/// An append to rows of 656 bytes. Each block's scale is a power of two, and e4m3 has the numbers without an
/// error.
#[test]
fn an_append_to_rows_with_scales() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let mut numbers = vec![];
    for row in 0..80usize {
        numbers.extend((0..LATENT).map(|column| match (column % 128, (row + 5 * column) % 3) {
            // 448 times a power of two, so that the scale is one.
            (0, _) => 1.75 * [1.0, 2.0, 0.5, 0.25][(row + column / 128) % 4],
            (_, 0) => 0.125,
            (_, 1) => -0.1875,
            _ => 0.25,
        }));
        numbers.extend((0..ROTARY).map(|column| (row + column) as f32 / 128.0 - 0.5));
    }
    let rows = Tensor::from_vec(numbers, (80, LATENT + ROTARY), &device)?.to_dtype(DType::BF16)?;
    let cache = Tensor::zeros((5, 16, 1, 656), DType::U8, &device)?;
    append_latent_scaled(&rows, &cache, LATENT, &Tensor::arange(0i64, 80, &device)?, LatentScale::InRows)?;
    check_pages(&cache, LatentScale::InRows, &rows)
}
