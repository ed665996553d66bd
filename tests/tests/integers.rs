//! The lines of docs/using.md about int8 KV caches, in the simulator.
use ferroflash::driver::{Harness, SimBuffer, SimDriver};
use ferroflash::request::{
    Append, AttentionRequest, Index, KvCache, KvPages, Mask, Slots, TensorView, TokenScales,
};
use ferroflash::{Attention, DType, Error};
use half::f16;
use reference::Random;

/// Tokens of the one sequence, keys per page, pages, head dim. There is one head, and the prefill has more
/// than the 64 rows that decode kernels take.
const TOKENS: usize = 70;
const PAGE: usize = 4;
const PAGES: usize = 20;
const DIM: usize = 64;

fn upload(driver: &SimDriver, bytes: &[u8]) -> Result<SimBuffer, Error> {
    let mut buffer = driver.allocate(bytes.len())?;
    driver.upload(&mut buffer, bytes)?;
    Ok(buffer)
}

fn download(driver: &SimDriver, buffer: &SimBuffer, bytes: usize) -> Result<Vec<u8>, Error> {
    let mut all = vec![0; bytes];
    driver.download(buffer, &mut all)?;
    Ok(all)
}

/// Keys are zeros, so each query's result is the mean of the values that the query sees.
#[test]
fn an_append_then_decode_then_prefill() -> Result<(), Error> {
    let attention = Attention::new(SimDriver::new("l4")?);
    let (driver, stream) = (attention.driver(), attention.driver().stream()?);
    let halves =
        |bits: &[u16]| upload(driver, &bits.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
    let poison = |bytes: usize| upload(driver, &vec![0xff; bytes]);
    let values_of_tokens = Random::new(3).normals(DType::F16, TOKENS * DIM);
    let (k, v) = (halves(&[0; TOKENS * DIM])?, halves(&values_of_tokens)?);
    let pages_of_sequence: Vec<usize> = (0..TOKENS.div_ceil(PAGE)).map(|i| i * 7 % PAGES).collect();
    let slot_of_token: Vec<usize> =
        (0..TOKENS).map(|token| pages_of_sequence[token / PAGE] * PAGE + token % PAGE).collect();
    let slot_bytes: Vec<u8> = slot_of_token.iter().flat_map(|slot| (*slot as i64).to_le_bytes()).collect();
    let table_bytes: Vec<u8> =
        pages_of_sequence.iter().flat_map(|page| (*page as u32).to_le_bytes()).collect();
    let (slot_buffer, table) = (upload(driver, &slot_bytes)?, upload(driver, &table_bytes)?);
    let lengths = upload(driver, &(TOKENS as i32).to_le_bytes())?;
    let rows = PAGES * PAGE;
    let [keys, values] = [poison(rows * DIM)?, poison(rows * DIM)?];
    let [k_scales, v_scales] = [poison(rows * 4)?, poison(rows * 4)?];
    let outputs = [poison(DIM * 2)?, poison(TOKENS * DIM * 2)?];
    let view = |buffer: &SimBuffer, dtype, shape: [usize; 4]| {
        TensorView::bshd(driver.address(buffer), shape.iter().product::<usize>() as u64, dtype, shape)
    };

    let scales = |buffer| TokenScales::contiguous(driver.address(buffer), rows as u64, 1);
    let pool = |buffer| view(buffer, DType::Int8, [PAGES, PAGE, 1, DIM]);
    let pages = KvPages::int8(pool(&keys), pool(&values), scales(&k_scales), scales(&v_scales));
    let tokens = |buffer| view(buffer, DType::F16, [1, TOKENS, 1, DIM]);
    let slots = Slots::i64(driver.address(&slot_buffer), TOKENS as u64);
    let append = Append::new(tokens(&k), tokens(&v), pages, slots);
    let (lengths, columns) = (Index::new(driver.address(&lengths), 1), pages_of_sequence.len());
    let cache = KvCache::paged(pages, Index::new(driver.address(&table), columns as u64), columns, lengths);
    let one = |buffer| view(buffer, DType::F16, [1, 1, 1, DIM]);
    let decode = AttentionRequest::cached(one(&v), cache, one(&outputs[0])).mask(Mask::Causal);
    let prefill = AttentionRequest::cached(tokens(&v), cache, tokens(&outputs[1])).mask(Mask::Causal);

    let plan = attention.plan(&append)?;
    // SAFETY: the buffers are as large as their views say, and nothing else uses them.
    unsafe { attention.launch(&plan, &append, &stream)? };
    for (request, family) in [(decode, "decode"), (prefill, "paged")] {
        let plan = attention.plan(&request)?;
        assert!(plan.contract().symbol.starts_with(family), "{}", plan.contract().symbol);
        // SAFETY: the same.
        unsafe { attention.launch(&plan, &request, &stream)? };
    }
    driver.synchronize(&stream)?;

    let (integers, factors) =
        (download(driver, &values, rows * DIM)?, download(driver, &v_scales, rows * 4)?);
    let mut sum = [0.0; DIM];
    let [last, all] =
        [download(driver, &outputs[0], DIM * 2)?, download(driver, &outputs[1], TOKENS * DIM * 2)?];
    let number = |bytes: &[u8]| f64::from(f16::from_le_bytes([bytes[0], bytes[1]]));
    for (token, slot) in slot_of_token.iter().enumerate() {
        let row = values_of_tokens[token * DIM..][..DIM].iter().map(|bits| f16::from_bits(*bits).to_f32());
        let scale = f32::from_le_bytes(factors[slot * 4..][..4].try_into().expect("4 bytes"));
        assert_eq!(scale, row.clone().fold(0.0, |most: f32, x| most.max(x.abs())) / 127.0, "token {token}");
        for (column, x) in row.enumerate() {
            let integer = integers[slot * DIM + column] as i8;
            assert_eq!(f32::from(integer), (x / scale).round_ties_even(), "token {token}, column {column}");
            sum[column] += f64::from(integer) * f64::from(scale);
            let mean = sum[column] / (token + 1) as f64;
            let close = |got: f64, of: &str| {
                assert!((got - mean).abs() <= 3e-3, "{of} {token}, column {column}: {got} instead of {mean}");
            };
            close(number(&all[(token * DIM + column) * 2..]), "query");
            if token == TOKENS - 1 {
                close(number(&last[column * 2..]), "decode of token");
            }
        }
    }
    Ok(())
}
