//! Checks of a problem's keys: in tensors or in a KV cache, and the number of splits.
use super::cache::{total_k, whole_chunks};
use crate::problem::MAX_ROWS;
use crate::request::{Alignment, Splits};
use crate::{CacheShape, Error, Problem};
use spec::MAX_SEQUENCES;

/// Exclusive bound of the number of splits of all sequences: the device counts them in 16 bits.
const MAX_SPLITS: u64 = 1 << 16;
/// The number of keys per tile, and the exclusive bound of the number of tiles.
const TILE: u64 = 16;
const MAX_TILES: u64 = 1 << 32;
/// Splits of a fixed number of keys have multiples of this number.
const RUN: u32 = 128;

/// Checks the keys of a problem with valid sizes.
pub(super) fn keys(p: &Problem) -> Result<(), Error> {
    let Some(cache) = &p.cache else { return in_tensors(p) };
    on_cache(p, cache)?;
    splits(p)
}

fn in_tensors(p: &Problem) -> Result<(), Error> {
    match p.splits {
        Splits::Auto | Splits::Exactly(1) => Ok(()),
        Splits::Exactly(0) => Err(no_splits()),
        Splits::Keys(_) | Splits::Exactly(_) => {
            let feature = format_args!("splits {:?} for keys in tensors", p.splits);
            let reason = "only requests on a KV cache take a number of splits; leave it to the planner";
            Err(Error::unsupported(feature, reason))
        }
    }
}

fn no_splits() -> Error {
    Error::invalid("splits", 0, "it must be 1 or more; leave it to the planner")
}

fn on_cache(p: &Problem, cache: &CacheShape) -> Result<(), Error> {
    whole_chunks("head_dim", p.kv_dtype, p.head_dim)?;
    total_k(cache.total_k)?;
    if p.alignment == Alignment::TopLeft {
        let reason = "on a KV cache the last query aligns with the last key; use bottom-right";
        return Err(Error::unsupported("alignment top-left on a KV cache", reason));
    }
    let many = p.varlen.is_some() || p.rows() > MAX_ROWS && p.latent().is_none();
    if !many && p.batch > MAX_SEQUENCES as usize {
        let (what, parts) = match cache.listed {
            true => (format!("{} queries with lists of keys (`indices`)", p.batch), ["queries", "queries"]),
            false => (format!("batch {}", p.batch), ["sequences", "batch"]),
        };
        let [parts, whole] = parts;
        let reason = format_args!("a launch decodes at most {MAX_SEQUENCES} {parts}; split the {whole}");
        return Err(Error::unsupported(what, reason));
    }
    Ok(())
}

/// Checks the number of splits on a KV cache.
fn splits(p: &Problem) -> Result<(), Error> {
    let (batch, max_k) = (p.batch as u64, p.seqlen_k as u64);
    let splits = p.decode_splits();
    let most = match splits {
        Splits::Auto if batch.saturating_mul(max_k.div_ceil(TILE)) < MAX_TILES => return Ok(()),
        Splits::Auto => {
            let feature = format_args!("{batch} sequences of up to {max_k} keys");
            let reason = format_args!(
                "all sequences together may have less than 2^32 tiles of {TILE} keys; split the batch"
            );
            return Err(Error::unsupported(feature, reason));
        }
        Splits::Exactly(0) => return Err(no_splits()),
        Splits::Exactly(count) => count.into(),
        Splits::Keys(keys) if keys == 0 || !keys.is_multiple_of(RUN) => {
            let feature = format_args!("splits of {keys} keys");
            return Err(Error::unsupported(
                feature,
                format_args!("a split must have a multiple of {RUN} keys; round it up"),
            ));
        }
        Splits::Keys(keys) => max_k.div_ceil(keys.into()),
    };
    if batch.saturating_mul(most) < MAX_SPLITS {
        return Ok(());
    }
    let feature = format_args!("{splits:?} of {batch} sequences of up to {max_k} keys");
    Err(Error::unsupported(
        feature,
        "all sequences together may have less than 2^16 splits; use longer splits",
    ))
}
