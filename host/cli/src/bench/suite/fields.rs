//! Fields that several kinds of shapes share, and their errors.
use crate::error::Error;
use ferroflash::DType;
use ferroflash::request::{Mask, Precision};
use ferroflash::spec::E4m3Scaled;
use serde::Deserialize;
use std::fmt;

/// Returns the error of a part of a file, without the position in that part.
pub(super) fn wrong(error: serde_json::Error) -> String {
    let words = error.to_string();
    words.rsplit_once(" at line ").map_or(words.clone(), |(what, _)| what.to_owned())
}

/// Checks that each of these fields is at least 1.
pub(super) fn sizes(all: &[(&str, usize)]) -> Result<(), Error> {
    match all.iter().find(|(_, size)| !(1..1 << 31).contains(size)) {
        Some((field, 0)) => Err(Error::Invalid(format!("{field} 0: it must be 1 or more"))),
        Some((field, size)) => Err(Error::Invalid(format!("{field} {size}: it must be below 2^31"))),
        None => Ok(()),
    }
}

/// Returns the type of queries. Without a name, the type is f16.
pub(super) fn dtype(name: Option<&str>) -> Result<DType, Error> {
    let named = |name| crate::options::dtype(name).map_err(|e| Error::Invalid(format!("dtype {name}: {e}")));
    name.map_or(Ok(DType::F16), named)
}

/// Returns the precision of the products. Without a name, it is that of the inputs.
pub(super) fn precision(name: Option<&str>) -> Result<Precision, Error> {
    let all = [Precision::Inputs, Precision::Int8F16, Precision::Int8Fp8, Precision::Fp8];
    let expected = "it must be inputs, int8-f16, int8-fp8 or fp8";
    let wrong = |name| Error::Invalid(format!("precision {name}: {expected}"));
    let named = |name| all.into_iter().find(|precision| precision.name() == name).ok_or_else(|| wrong(name));
    name.map_or(Ok(Precision::Inputs), named)
}

/// Returns the type of a cache. Without a name, the cache has the queries' type. The rows of a latent cache
/// may have their own scales.
pub(super) fn kv_dtype(name: Option<&str>, queries: DType) -> Result<DType, Error> {
    let all = [queries, DType::E4m3, DType::Int8, DType::E4m3Scaled];
    let wrong = |name| {
        let [own, e4m3, int8, scaled] = all.map(DType::name);
        let text = format!("{own} (the queries' type), {e4m3}, {int8} or {scaled} (latent caches)");
        Error::Invalid(format!("kv_dtype {name}: it must be {text}"))
    };
    name.map_or(Ok(queries), |name| all.into_iter().find(|d| d.name() == name).ok_or_else(|| wrong(name)))
}

/// Returns the bytes of a row of a cache. Rows that have their own scales are of a latent cache for queries
/// or tokens of 576 bf16.
pub(super) fn row_bytes(
    cache: DType,
    queries: DType,
    head_dim: usize,
    latent: Option<usize>,
) -> Result<usize, Error> {
    let is_scaled = cache == DType::E4m3Scaled;
    let fits = queries == DType::Bf16 && head_dim == E4m3Scaled::COLUMNS;
    if is_scaled && !(fits && latent.is_some_and(|columns| columns <= E4m3Scaled::SCALED)) {
        let why = format!(
            "such rows are of a latent cache; set dtype bf16, head_dim {} and latent, at most {}",
            E4m3Scaled::COLUMNS,
            E4m3Scaled::SCALED
        );
        return Err(Error::Invalid(format!("kv_dtype {}: {why}", cache.name())));
    }
    Ok(if is_scaled { E4m3Scaled::ROW_BYTES } else { head_dim * cache.bytes() })
}

/// Returns the mask. Without a field, a query sees all keys.
pub(super) fn mask(causal: bool, window: Option<[i64; 2]>) -> Result<Mask, Error> {
    let side = |keys: i64| match keys {
        -1 => Ok(None),
        _ => u32::try_from(keys)
            .map(Some)
            .map_err(|_| Error::Invalid(format!("window {keys}: it must be -1 (unbounded), 0 or more"))),
    };
    match (causal, window) {
        (true, Some(_)) => {
            Err(Error::Invalid("causal and window: give one of them; causal is the window [-1, 0]".into()))
        }
        (true, None) => Ok(Mask::Causal),
        (false, Some([left, right])) => Ok(Mask::Window { left: side(left)?, right: side(right)? }),
        (false, None) => Ok(Mask::Full),
    }
}

/// The order of a cache's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Order {
    /// Keys, then heads.
    #[default]
    Nhd,
    /// Heads, then keys.
    Hnd,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Nhd => "NHD",
            Order::Hnd => "HND",
        })
    }
}

/// Returns both types as text, or one type if they are equal.
pub(super) fn types(queries: DType, cache: DType) -> String {
    match queries == cache {
        true => queries.name().into(),
        false => format!("{} on {}", queries.name(), cache.name()),
    }
}
