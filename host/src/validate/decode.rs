//! Checks of decode requests.
use super::{
    ALIBI, LSE, O, Q, SINKS, WORKSPACE, address, cache, disjoint, input, log_sum_exp, memory, names, output,
    packed, sinks, slopes,
};
use crate::families::decode::{MAX_ROWS, rows};
use crate::{DType, Decode, Error, Splits};
use spec::MAX_SEQUENCES;

names!(COUNTERS "counters");

/// Splits of all sequences are counted in 16 bits on the device.
const MAX_SPLITS: u64 = 1 << 16;
/// Keys of a tile, and what the tiles of all sequences are fewer than.
const TILE: u64 = 16;
const MAX_TILES: u64 = 1 << 32;
/// Chunks are multiples of this many keys.
const CHUNK: u32 = 128;

/// Checks the request and every tensor.
pub(crate) fn decode(d: &Decode<'_>) -> Result<(), Error> {
    let (p, keys) = (d.problem(), &d.cache.pages.keys);
    cache::reach(&d.cache)?;
    super::problem(&p)?;
    if keys.dtype != p.dtype && keys.dtype != DType::E4m3 {
        let feature = format_args!("queries of {} on a cache of {}", p.dtype.name(), keys.dtype.name());
        return Err(Error::unsupported(feature, "the cache is of the queries' type, or of e4m3"));
    }
    if keys.shape[3] != p.head_dim {
        let expected = format_args!("[pages, page, heads, head_dim] must end in q's head_dim {}", p.head_dim);
        return Err(Error::invalid("cache.keys.shape", format!("{:?}", keys.shape), expected));
    }
    if d.o.dtype != p.dtype {
        let expected = format_args!("all tensors must have q's, {}", p.dtype.name());
        return Err(Error::invalid(O.dtype, d.o.dtype.name(), expected));
    }
    let [shape, _] = p.shapes();
    if d.q.shape != shape {
        let expected = format_args!("packed queries are of one batch, {shape:?}");
        return Err(Error::invalid(Q.shape, format!("{:?}", d.q.shape), expected));
    }
    if d.o.shape != d.q.shape {
        let expected = format_args!("it must be q's, {:?}", d.q.shape);
        return Err(Error::invalid(O.shape, format!("{:?}", d.o.shape), expected));
    }
    let many = p.packed.is_some() || rows(&p) > MAX_ROWS;
    if !many && p.batch > MAX_SEQUENCES as usize {
        let feature = format_args!("batch {}", p.batch);
        let reason = format_args!("a launch decodes at most {MAX_SEQUENCES} sequences; split the batch");
        return Err(Error::unsupported(feature, reason));
    }
    splits(d)?;
    let [keys, values, k_scale, v_scale, table, lengths] = cache::cache(&d.cache, p.batch)?;
    let sinks = d.sinks.as_ref().map(|view| sinks(view, p.heads_q)).transpose()?;
    let lse = d.lse.as_ref().map(|view| log_sum_exp(view, &p)).transpose()?;
    let counters = d.counters.map(|counters| {
        address(&COUNTERS, counters.address, 4)?;
        super::bytes_from(&COUNTERS, counters.address, counters.bytes)
    });
    let [q, o] = [input(&Q, &d.q)?, output(&O, &d.o)?].map(Some);
    let workspace = d.workspace.as_ref().map(memory).transpose()?;
    let alibi = (&ALIBI, d.alibi.as_ref().map(|view| slopes(view, &p)).transpose()?);
    let (sinks, starts) = ((&SINKS, sinks), packed::queries(d)?);
    let read = [(&Q, q), keys, values, k_scale, v_scale, table, lengths, sinks, alibi, starts];
    let written = [(&O, o), (&LSE, lse), (&WORKSPACE, workspace), (&COUNTERS, counters.transpose()?)];
    let mut all = [(&Q, None); 14];
    all[..10].copy_from_slice(&read);
    all[10..].copy_from_slice(&written);
    disjoint(&all, read.len())
}

/// Checks in how many parts sequences are cut.
fn splits(d: &Decode<'_>) -> Result<(), Error> {
    let (batch, max_k) = (d.problem().batch as u64, d.cache.max_k as u64);
    let most = match d.splits {
        Splits::Auto if batch.saturating_mul(max_k.div_ceil(TILE)) < MAX_TILES => return Ok(()),
        Splits::Auto => {
            let feature = format_args!("{batch} sequences of up to {max_k} keys");
            let reason =
                format_args!("shares of all keys are counted in 32 bits, {TILE} at a time; split the batch");
            return Err(Error::unsupported(feature, reason));
        }
        Splits::Exactly(0) => return Err(Error::invalid("splits", 0, "it must be 1 or more")),
        Splits::Exactly(count) => count.into(),
        Splits::Chunk(keys) if keys == 0 || !keys.is_multiple_of(CHUNK) => {
            let feature = format_args!("splits of {keys} keys");
            return Err(Error::unsupported(feature, format_args!("chunks are multiples of {CHUNK} keys")));
        }
        Splits::Chunk(keys) => max_k.div_ceil(keys.into()),
    };
    if batch.saturating_mul(most) < MAX_SPLITS {
        return Ok(());
    }
    let feature = format_args!("{:?} of {batch} sequences of up to {max_k} keys", d.splits);
    Err(Error::unsupported(feature, "the splits of all sequences are counted in 16 bits; take longer ones"))
}
