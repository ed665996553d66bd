//! Checks of KV caches, their scales, and integers in device memory. The host cannot check the integers'
//! values; kernels clamp them.
use super::footprint::Footprint;
use super::{Names, Part, Use, address, input, names, output};
use crate::request::{
    Index, KvCache, KvPages, KvScale, ListedKeys, MAX_SEQLEN, Paged, TensorView, TokenScales,
};
use crate::select::WIDE_INT8;
use crate::{DType, Error};

names!(
    KEYS "cache.keys" VALUES "cache.values" K_SCALE "cache.k_scale" V_SCALE "cache.v_scale"
    ROWS "cache.rows" TABLE "cache.table" LENGTHS "cache.lengths" SLOTS "slots" INDICES "indices"
);

/// Maximum number of 16-byte chunks that keys, or values, may span: chunk indices have 32 bits.
const MAX_CHUNKS: u64 = 1 << 32;
/// Maximum number of keys in all pages.
const MAX_SLOTS: u64 = 1 << 31;

/// Returns the remedy if an append cannot write keys and values of different widths or strides.
pub(super) fn apart(keys: &TensorView) -> &'static str {
    match keys.dtype {
        DType::E4m3 | DType::Int8 => "give values the columns and strides of keys",
        _ => "make one append for keys and one for values, each to a latent cache",
    }
}

/// Checks the pages' view and its scales for `sequences` sequences.
pub(crate) fn pages(pages: &KvPages, sequences: usize, used: Use) -> Result<[Part; 4], Error> {
    let KvPages { keys, values, scales: [k_scale, v_scale] } = pages;
    let [count, page, heads, head_dim] = keys.shape;
    sizes(keys)?;
    if values.dtype != keys.dtype {
        let expected = format_args!("it must be the dtype of keys, {}", keys.dtype.name());
        return Err(Error::invalid(VALUES.dtype, values.dtype.name(), expected));
    }
    if values.shape[..3] != keys.shape[..3] || values.shape[3] == 0 {
        let expected = format_args!("[pages, page, heads, ..] must be those of keys, {:?}", keys.shape);
        return Err(Error::invalid(VALUES.shape, format!("{:?}", values.shape), expected));
    }
    let has_one_index = used == Use::Written || pages.latent_columns().is_some();
    if has_one_index && !pages.has_equal_strides() {
        let feature =
            format_args!("{} {:?} beside {:?} of keys", VALUES.strides, values.strides, keys.strides);
        let reason = "one index addresses keys and values of an append, and of a latent cache";
        return Err(Error::unsupported(feature, format_args!("{reason}; {}", apart(keys))));
    }
    if keys.dtype == DType::F32 {
        return Err(Error::unsupported("a KV cache of f32", "KV caches are f16, bf16, e4m3 or int8"));
    }
    whole_chunks("head_dim", keys.dtype, head_dim)?;
    whole_chunks("head_dim_v", keys.dtype, values.shape[3])?;
    super::latent::rows(pages)?;
    let check = if used == Use::Written { output } else { input };
    let footprints = [check(&KEYS, keys)?, check(&VALUES, values)?];
    if footprints.iter().any(|f| f.span().is_none_or(|bytes| bytes.div_ceil(16) > MAX_CHUNKS)) {
        let feature = format_args!("{} {:?} for shape {:?}", KEYS.strides, keys.strides, keys.shape);
        return Err(Error::unsupported(
            feature,
            "keys, and values, may span at most 64 GiB; use several KV caches",
        ));
    }
    if (count as u64).checked_mul(page as u64).is_none_or(|slots| slots >= MAX_SLOTS) {
        let feature = format_args!("{count} pages of {page} keys");
        return Err(Error::unsupported(
            feature,
            "all pages together may hold less than 2^31 keys; use several KV caches",
        ));
    }
    let scale = |name: &Names, scale: &KvScale| match scale {
        KvScale::Tokens(scales) => tokens(name, scales, keys.dtype, [count * page, heads], used).map(Some),
        _ if keys.dtype == DType::Int8 => Err(Error::invalid(
            name.name,
            format!("{scale:?}"),
            "an int8 KV cache has a scale for each token and key head; give both scales device memory",
        )),
        scale => self::scale(name, scale, keys.dtype, [sequences, heads]),
    };
    Ok([
        (&KEYS, Some(footprints[0])),
        (&VALUES, Some(footprints[1])),
        (&K_SCALE, scale(&K_SCALE, k_scale)?),
        (&V_SCALE, scale(&V_SCALE, v_scale)?),
    ])
}

/// Checks that a row of a head has whole 16-byte chunks.
pub(super) fn whole_chunks(what: &str, dtype: DType, columns: usize) -> Result<(), Error> {
    let of_chunk = 16 / dtype.bytes();
    if columns.is_multiple_of(of_chunk) {
        return Ok(());
    }
    let feature = format_args!("{what} {columns} of an {} cache", dtype.name());
    let next = columns.div_ceil(of_chunk).saturating_mul(of_chunk);
    if dtype == DType::Int8 && columns > 256 {
        return Err(Error::unsupported(feature, WIDE_INT8));
    }
    let scale = if what == "head_dim" { format!(", and set the scale of {columns}") } else { String::new() };
    let reason = format!("kernels take multiples of {of_chunk}; pad tensors with zeros to {next}{scale}");
    Err(Error::unsupported(feature, reason))
}

/// Checks that no size is 0.
fn sizes(keys: &TensorView) -> Result<(), Error> {
    if keys.shape.contains(&0) {
        let expected = "[pages, page, heads, head_dim] must each be 1 or more";
        return Err(Error::invalid(KEYS.shape, format!("{:?}", keys.shape), expected));
    }
    Ok(())
}

/// Checks the maximum numbers of keys that the request states, independent of the problem.
pub(super) fn reach(cache: &KvCache) -> Result<(), Error> {
    sizes(&cache.pages.keys)?;
    let page = cache.pages.keys.shape[1];
    let (capacity, of) = match cache.paged {
        Paged::Dense { .. } => (page, "a page"),
        Paged::Table { columns, stride, .. } => {
            table_entries(TABLE.name, [columns, stride], 1)?;
            (columns.saturating_mul(page), "a row of the table")
        }
    };
    if cache.max_k == 0 || cache.max_k > capacity {
        let expected = format_args!("it must be 1 or more and at most {capacity}, the keys of {of}");
        return Err(Error::invalid("cache.max_k", cache.max_k, expected));
    }
    if cache.max_k > MAX_SEQLEN {
        let feature = format_args!("cache.max_k {}", cache.max_k);
        let reason = format_args!("sequences have at most {MAX_SEQLEN} positions");
        return Err(Error::unsupported(feature, reason));
    }
    total_k(cache.total_k)
}

/// Checks a block table's columns and the distance of its rows, one per sequence. Returns the number of
/// entries that the table needs.
pub(super) fn table_entries(
    name: &'static str,
    [columns, stride]: [usize; 2],
    rows: usize,
) -> Result<u64, Error> {
    let refused = |expected: &dyn std::fmt::Display| {
        let value = format_args!("{columns} columns, rows {stride} entries apart");
        Err(Error::invalid(name, value, expected))
    };
    if columns == 0 || [columns, stride].iter().any(|n| u32::try_from(*n).is_err()) {
        return refused(&"there must be 1 column or more, and both below 2^32");
    }
    if rows > 1 && stride < columns {
        let expected = "a sequence's row must not overlap the next sequence's: a contiguous table has rows";
        return refused(&format_args!(
            "{expected} {columns} apart; set the table's stride, or copy the table"
        ));
    }
    let last = (rows as u64).saturating_sub(1).saturating_mul(stride as u64);
    Ok(last.saturating_add(columns as u64))
}

/// Checks the maximum number of keys of all sequences together.
pub(super) fn total_k(keys: Option<usize>) -> Result<(), Error> {
    match keys {
        Some(0) => Err(Error::invalid("cache.total_k", 0, "it must be 1 or more")),
        _ => Ok(()),
    }
}

/// Checks a scale for these numbers of sequences and heads.
pub(super) fn scale(
    name: &Names,
    scale: &KvScale,
    dtype: DType,
    extents: [usize; 2],
) -> Result<Option<Footprint>, Error> {
    if *scale == KvScale::One {
        return Ok(None);
    }
    if dtype != DType::E4m3 {
        let expected = format_args!("a KV cache of {} has no scales; omit them", dtype.name());
        return Err(Error::invalid(name.name, format!("{scale:?}"), expected));
    }
    match *scale {
        KvScale::One | KvScale::Tokens(_) => Ok(None),
        KvScale::Value(value) if value.is_normal() && value > 0.0 => Ok(None),
        KvScale::Value(value) => {
            Err(Error::invalid(name.name, format_args!("{value:e}"), "it must be a normal f32 above 0"))
        }
        KvScale::Device { address, elements, strides } => {
            per_head(name, address, elements, strides, extents).map(Some)
        }
    }
}

/// Checks the scales of `slots` slots of `heads` heads.
fn tokens(
    name: &Names,
    scales: &TokenScales,
    dtype: DType,
    [slots, heads]: [usize; 2],
    used: Use,
) -> Result<Footprint, Error> {
    if dtype != DType::Int8 {
        let expected = format_args!("a KV cache of {} has no scales per token; omit them", dtype.name());
        return Err(Error::invalid(name.name, format!("{scales:?}"), expected));
    }
    let TokenScales { address: base, elements, strides } = *scales;
    address(name, base, 4)?;
    let of = [("slot to slot", slots, strides[0]), ("head to head", heads, strides[1])];
    let mut dims = [(1, 0); 4];
    for (dim, (which, extent, stride)) in dims.iter_mut().zip(of) {
        let bytes = u64::try_from(stride).ok().and_then(|stride| stride.checked_mul(4));
        match bytes.filter(|bytes| *bytes < 1 << 32) {
            _ if extent == 1 => {}
            Some(bytes) => *dim = (extent as u64, bytes),
            None => {
                let expected = format_args!("the stride from {which} must be 0 or more, and below 2^30");
                return Err(Error::invalid(name.strides, format!("{strides:?}"), expected));
            }
        }
    }
    let footprint = Footprint::new(base, 4, dims);
    super::fits(name.elements, &footprint, elements)?;
    if used == Use::Written && footprint.overlaps_itself() {
        let expected = "no two slots or heads may share a scale; pass contiguous scales";
        return Err(Error::invalid(name.strides, format!("{strides:?}"), expected));
    }
    Ok(footprint)
}

/// Checks f32 values for these numbers of sequences and heads.
pub(super) fn per_head(
    name: &Names,
    base: u64,
    elements: u64,
    strides: [i64; 2],
    extents: [usize; 2],
) -> Result<Footprint, Error> {
    address(name, base, 4)?;
    let mut dims = [(1, 0); 4];
    for ((dim, extent), stride) in dims.iter_mut().zip(extents).zip(strides) {
        let bytes = u64::try_from(stride).ok().and_then(|stride| stride.checked_mul(4));
        match bytes {
            _ if extent == 1 => {}
            Some(bytes) => *dim = (extent as u64, bytes),
            None => {
                let expected =
                    "both strides (from sequence to sequence, from head to head) must be 0 or more";
                return Err(Error::invalid(name.strides, format!("{strides:?}"), expected));
            }
        }
    }
    let footprint = Footprint::new(base, 4, dims);
    super::fits(name.elements, &footprint, elements)?;
    Ok(footprint)
}

/// Checks a KV cache that the kernel reads, for this number of sequences.
pub(crate) fn cache(cache: &KvCache, sequences: usize) -> Result<[Part; 6], Error> {
    if sequences == 0 {
        return Err(Error::invalid("sequences", 0, "every size must be 1 or more"));
    }
    let [keys, values, k_scale, v_scale] = pages(&cache.pages, sequences, Use::Read)?;
    let count = cache.pages.keys.shape[0];
    reach(cache)?;
    let lengths = index(&LENGTHS, &cache.lengths, sequences as u64, "one per sequence")?;
    let table = match &cache.paged {
        Paged::Dense { rows: None } if count < sequences => {
            let expected = format_args!("[pages, ..] must be {sequences} or more, one per sequence");
            return Err(Error::invalid(KEYS.shape, format!("{:?}", cache.pages.keys.shape), expected));
        }
        Paged::Dense { rows: None } => (&TABLE, None),
        Paged::Dense { rows: Some(rows) } => {
            (&ROWS, Some(index(&ROWS, rows, sequences as u64, "one per sequence")?))
        }
        Paged::Table { entries, columns, stride } => {
            let needed = table_entries(TABLE.name, [*columns, *stride], sequences)?;
            (&TABLE, Some(index(&TABLE, entries, needed, "one row of page indices per sequence")?))
        }
    };
    Ok([keys, values, k_scale, v_scale, table, (&LENGTHS, Some(lengths))])
}

/// Checks lists of keys, for this number of queries.
pub(super) fn listed(keys: &ListedKeys, queries: usize) -> Result<[Part; 6], Error> {
    let [k, v, k_scale, v_scale] = pages(&keys.pages, queries, Use::Read)?;
    let needed = [keys.pages.keys.shape[2], keys.topk]
        .iter()
        .fold(queries as u64, |n, extent| n.saturating_mul(*extent as u64));
    let indices = index(&INDICES, &keys.indices, needed, "topk for each query and latent head")?;
    Ok([k, v, k_scale, v_scale, (&INDICES, Some(indices)), (&LENGTHS, None)])
}

/// Checks that an array has enough integers.
pub(crate) fn index(name: &Names, index: &Index, needed: u64, what: &str) -> Result<Footprint, Error> {
    let Index { address: base, elements } = *index;
    address(name, base, 4)?;
    let footprint = Footprint::new(base, 4, [(needed, 4), (1, 0), (1, 0), (1, 0)]);
    if elements < needed || footprint.span().is_none() {
        let expected = format_args!("it must be {needed} or more, {what}, and end within 64 bits");
        return Err(Error::invalid(name.elements, elements, expected));
    }
    Ok(footprint)
}
