//! Checks of an append.
use super::cache::{self, SLOTS};
use super::{K, Part, Use, V, disjoint, input, latent, per_token, rotary, sizes};
use crate::request::{Append, KvScale, Parts};
use crate::{DType, Error};
use spec::{APPEND_COLUMNS, E4m3Scaled, WARP_PARTS};

/// Checks everything except whether one launch can take all tokens.
pub(crate) fn append(a: &Append) -> Result<Parts, Error> {
    let [k, v, slots, k_scale, v_scale, keys, values] = tensors(a)?;
    let rotary::Parts { read: [cos, sin, positions, q], written } = rotary::rotary(a)?;
    // The kernel writes the scales of an int8 cache.
    let read = if a.pages.keys.dtype == DType::Int8 { 7 } else { 9 };
    let all = [k, v, slots, cos, sin, positions, q, k_scale, v_scale, keys, values, written];
    disjoint(&all, read)?;
    Ok(sizes(&all, read..all.len()))
}

/// Checks everything except the rotation, the overlaps, and whether one launch can take all tokens. In a
/// latent cache, `k` and the cache's keys are whole rows, and there are no other values.
fn tensors(a: &Append) -> Result<[Part; 7], Error> {
    let [batch, rows, heads, head_dim] = a.k.shape;
    if a.k.shape.contains(&0) || batch != 1 {
        let expected = "it must be [1, tokens, heads, head_dim], each 1 or more; flatten batches into tokens";
        return Err(Error::invalid(K.shape, format!("{:?}", a.k.shape), expected));
    }
    let is_latent = a.pages.latent_columns().is_some();
    let keys = &a.pages.keys;
    if is_latent {
        latent::append(a)?;
    } else {
        values(a)?;
    }
    let is_scaled = is_latent && keys.dtype == DType::E4m3Scaled;
    let takes = is_scaled || [a.k.dtype, DType::E4m3, DType::Int8].contains(&keys.dtype);
    if !takes || matches!(a.k.dtype, DType::E4m3 | DType::Int8 | DType::E4m3Scaled) {
        let feature = format_args!("{} tokens and an {} cache", a.k.dtype.name(), keys.dtype.name());
        let reason = "tokens are f16 or bf16, and the cache has their type or is e4m3 or int8";
        return Err(Error::unsupported(feature, reason));
    }
    let columns = if is_scaled { E4m3Scaled::ROW_BYTES } else { head_dim };
    if keys.shape[2..] != [heads, columns] {
        let of =
            if is_scaled { "the heads of k, and the bytes of a row" } else { "the heads and columns of k" };
        let expected = format_args!("it must be [pages, page, {heads}, {columns}], with {of}");
        return Err(Error::invalid(cache::KEYS.shape, format!("{:?}", keys.shape), expected));
    }
    if keys.dtype == DType::Int8 && head_dim > WARP_PARTS * APPEND_COLUMNS {
        let feature = format_args!("head_dim {head_dim} of an append to an int8 cache");
        let most = WARP_PARTS * APPEND_COLUMNS;
        return Err(Error::unsupported(
            feature,
            format_args!("a warp rounds a row of at most {most} columns"),
        ));
    }
    let values = &a.pages.values;
    if !is_latent && values.shape[3] != head_dim {
        let feature =
            format_args!("{} {:?} beside {:?} of keys", cache::VALUES.shape, values.shape, keys.shape);
        let reason = "an append writes equal numbers of columns of k and v";
        return Err(Error::unsupported(feature, format_args!("{reason}; {}", cache::apart(keys))));
    }
    for (name, scale) in [&cache::K_SCALE, &cache::V_SCALE].into_iter().zip(&a.pages.scales) {
        if let KvScale::Device { strides: [sequence, _], .. } = scale
            && *sequence != 0
        {
            let feature = format_args!("{} with {sequence} elements from sequence to sequence", name.strides);
            return Err(Error::unsupported(
                feature,
                "an append supports no per-sequence scales; use per-head scales",
            ));
        }
    }
    let slots = per_token(&SLOTS, a.slots.address, a.slots.elements, a.slots.wide)?;
    let least = rows.min(a.v.shape[1]);
    if a.slots.elements > least as u64 {
        let expected = format_args!("it must be at most {least}, the smaller row count of k and v");
        return Err(Error::invalid(SLOTS.elements, a.slots.elements, expected));
    }
    let [keys, mut values, k_scale, v_scale] = cache::pages(&a.pages, 1, Use::Written)?;
    let [k, mut v] = [(&K, Some(input(&K, &a.k)?)), (&V, Some(input(&V, &a.v)?))];
    if is_latent {
        (v.1, values.1) = (None, None);
    }
    Ok([k, v, slots, k_scale, v_scale, keys, values])
}

/// Checks shape and dtype of `v`, which are those of `k`.
fn values(a: &Append) -> Result<(), Error> {
    let [.., heads, head_dim] = a.k.shape;
    if a.v.shape[0] != 1 || a.v.shape[2..] != a.k.shape[2..] {
        let remedy = match a.v.shape[2] == heads && a.v.shape[3] != head_dim {
            true => format!("; for values of another width, {}", cache::apart(&a.pages.keys)),
            false => String::new(),
        };
        let expected = format_args!("it must be [1, tokens, {heads}, {head_dim}], the shape of k{remedy}");
        return Err(Error::invalid(V.shape, format!("{:?}", a.v.shape), expected));
    }
    if a.v.dtype != a.k.dtype {
        let expected = format_args!("it must be the dtype of k, {}", a.k.dtype.name());
        return Err(Error::invalid(V.dtype, a.v.dtype.name(), expected));
    }
    Ok(())
}
