//! Checks of attention requests.
use super::dtypes::unlike;
use super::shared_prefixes::shared_prefixes;
use super::{
    ALIBI, BIAS, K, Names, O, Part, Q, SINKS, V, WORKSPACE, address, bias, bytes_from, cache, disjoint,
    divided, input, lse, mask, memory, names, output, problem, state,
};
use crate::request::{
    self, AttentionRequest, Index, KeysValues, KvPages, KvScale, Parts, Queries, RowOutputs, Scratch,
    TensorView,
};
use crate::{DType, Error, Problem};
use spec::E4m3Scaled;

names!(
    COUNTERS "counters" CU_SEQLENS_Q "cu_seqlens_q" SEQUSED_Q "seqused_q" CU_SEQLENS_K "cu_seqlens_k"
    Q_DESCALE "q_descale" K_DESCALE "k_descale" V_DESCALE "v_descale"
    SEQUSED_K "seqused_k" MAX_LOGITS_HEAD "max_logits_head"
);

/// The part that stands for a missing part of a request.
pub(super) const NONE: Part = (&Q, None);
/// The number of parts of keys and values in a KV cache.
const CACHE: usize = 6;
/// The number of parts of keys and values.
const KEYS: usize = CACHE + 1;
/// The number of parts that a launch reads.
const READ: usize = KEYS + 7;
/// The number of parts that a launch reads or writes.
pub(super) const PARTS: usize = READ + 4 + RowOutputs::COUNT;

/// Checks the problem and every tensor, and returns the problem and the parts: shared prefixes come last. A
/// problem that equals `planned`, which is valid, is not checked again.
pub(crate) fn attention(
    r: &AttentionRequest<'_>,
    planned: Option<&Problem>,
) -> Result<(Problem, Parts), Error> {
    let mut all = [NONE; request::PARTS];
    let asked = r.problem();
    if asked.is_empty() {
        // The launch reads and writes nothing, wherever the tensors are.
        problem(&asked.filled())?;
        return Ok((asked, super::sizes(&all, READ..PARTS)));
    }
    let p = parts(r, planned, &mut all)?;
    disjoint(&all[..PARTS], READ)?;
    if let Some(prefixes) = &r.shared_prefixes {
        let read = shared_prefixes(prefixes, &r.kv, &p, &all[READ..PARTS])?;
        all[PARTS..][..read.len()].copy_from_slice(&read);
    }
    Ok((p, super::sizes(&all, READ..PARTS)))
}

/// Checks the problem and every tensor by itself. Returns the problem. Sets the first [`PARTS`] parts: those
/// that a launch reads, then O, outputs of rows, workspace and counters.
pub(super) fn parts(
    r: &AttentionRequest<'_>,
    planned: Option<&Problem>,
    all: &mut [Part],
) -> Result<Problem, Error> {
    let p = r.problem();
    if let KeysValues::Cache(kv) = &r.kv {
        cache::reach(kv)?;
    }
    if planned != Some(&p) {
        problem(&p)?;
    }
    let [starts, used] = match &r.queries {
        Queries::Batched => [NONE; 2],
        Queries::Varlen(queries) => [
            integers(&CU_SEQLENS_Q, Some(queries.cu_seqlens_q), queries.batch + 1, OFFSETS)?,
            integers(&SEQUSED_Q, queries.seqused_q, queries.batch, "one per sequence")?,
        ],
    };
    if used.1.is_some() {
        divided::divides(r)?;
    }
    match (&r.kv, &r.queries) {
        (KeysValues::Tensors { .. }, Queries::Varlen(_)) | (KeysValues::Varlen { .. }, Queries::Batched) => {
            let value = "one is varlen and the other is batched";
            return Err(Error::invalid("queries", value, "queries and keys must both be varlen, or neither"));
        }
        (KeysValues::Tensors { .. } | KeysValues::Varlen { .. }, _) => tensors(r, &p, all)?,
        (KeysValues::Cache(kv), _) => {
            on_cache(r, &kv.pages, &p)?;
            all[..CACHE].copy_from_slice(&cache::cache(kv, p.batch)?);
        }
        (KeysValues::Listed(keys), _) => {
            on_cache(r, &keys.pages, &p)?;
            all[..CACHE].copy_from_slice(&cache::listed(keys, p.batch)?);
        }
    }
    descales(r, &p, all)?;
    factor(r, &p)?;
    let [q, o] = [(&Q, Some(input(&Q, &r.q)?)), (&O, Some(output(&O, &r.o)?))];
    let alibi = (&ALIBI, r.scores.alibi.as_ref().map(|view| lse::slopes(view, &p)).transpose()?);
    let sinks = (&SINKS, r.scores.sinks.as_ref().map(|view| lse::sinks(view, p.heads_q)).transpose()?);
    let bias = (&BIAS, r.scores.bias.as_ref().map(|view| bias::bias(view, &p)).transpose()?);
    let mask = mask::mask(&r.mask, &p)?;
    let heads = r.max_logits_head.as_ref();
    let heads = heads.map(|view| lse::per_query_head(&MAX_LOGITS_HEAD, view, p.heads_q)).transpose()?;
    let (heads, [workspace, counters]) = ((&MAX_LOGITS_HEAD, heads), scratch(&r.scratch)?);
    all[KEYS..READ].copy_from_slice(&[q, starts, used, sinks, alibi, bias, mask]);
    all[READ] = o;
    all[READ + 1..][..RowOutputs::COUNT].copy_from_slice(&lse::outputs(r, &p)?);
    if p.leaves_state() {
        state::outputs(r, &p)?;
    }
    all[PARTS - 3..PARTS].copy_from_slice(&[heads, workspace, counters]);
    Ok(p)
}

/// The number of integers in an array of offsets.
const OFFSETS: &str = "one per sequence and one more";

/// Checks an array of integers in device memory, if there is one: it must have `needed` integers, `what`.
fn integers(name: &'static Names, index: Option<Index>, needed: usize, what: &str) -> Result<Part, Error> {
    let footprint = |index: Index| cache::index(name, &index, needed as u64, what);
    Ok((name, index.map(footprint).transpose()?))
}

/// Checks keys and values in tensors. Sets their parts.
fn tensors(r: &AttentionRequest<'_>, p: &Problem, all: &mut [Part]) -> Result<(), Error> {
    let shapes = p.shapes();
    let Some([k, v]) = r.kv.tensors() else { return Ok(()) };
    let views = [(&Q, &r.q, p.dtype), (&K, k, p.kv_dtype), (&V, v, p.kv_dtype), (&O, &r.o, p.o_dtype)];
    for ((name, view, dtype), shape) in views.into_iter().zip(shapes) {
        is_like(name, view, dtype, shape)?;
    }
    if let KeysValues::Varlen { keys, .. } = &r.kv {
        all[2] = integers(&CU_SEQLENS_K, Some(keys.cu_seqlens_k), p.batch + 1, OFFSETS)?;
        all[3] = integers(&SEQUSED_K, keys.seqused_k, p.batch, "one per sequence")?;
    }
    (all[0], all[1]) = ((&K, Some(input(&K, k)?)), (&V, Some(input(&V, v)?)));
    Ok(())
}

/// Checks the scales of Q, K and V. Sets their parts: two parts of a cache, and one that no cache has.
fn descales(r: &AttentionRequest<'_>, p: &Problem, all: &mut [Part]) -> Result<(), Error> {
    let names = [&Q_DESCALE, &K_DESCALE, &V_DESCALE];
    for ((name, scale), at) in names.into_iter().zip(r.descales.all()).zip(CACHE - 2..) {
        match scale {
            KvScale::One => continue,
            KvScale::Tokens(_) => {
                let expected = "tensors have a scale per batch and key head in device memory";
                return Err(Error::invalid(name.name, format!("{scale:?}"), expected));
            }
            _ if !p.is_eight_bit() => {
                let expected = "only q, k and v of e4m3 in tensors have such scales; omit it";
                return Err(Error::invalid(name.name, format!("{scale:?}"), expected));
            }
            _ => all[at] = (name, cache::scale(name, scale, DType::E4m3, [p.batch, p.heads_k])?),
        }
    }
    Ok(())
}

/// Checks the factor of scores, with the scales of Q and K that the host knows.
fn factor(r: &AttentionRequest<'_>, p: &Problem) -> Result<(), Error> {
    let (of_queries, of_keys) = match &r.kv {
        KeysValues::Cache(kv) => (&KvScale::One, &kv.pages.scales[0]),
        KeysValues::Listed(keys) => (&KvScale::One, &keys.pages.scales[0]),
        KeysValues::Tensors { .. } | KeysValues::Varlen { .. } => (&r.descales.q, &r.descales.k),
    };
    let known = |scale: &KvScale| if let KvScale::Value(value) = scale { *value } else { 1.0 };
    let factor = p.softmax_scale() * known(of_queries) * known(of_keys);
    problem::at_most(factor, " times those of q and k")
}

/// Checks the dtype and the shape of a tensor.
pub(super) fn is_like(name: &Names, view: &TensorView, dtype: DType, shape: [usize; 4]) -> Result<(), Error> {
    if view.dtype != dtype {
        return Err(unlike(name, view.dtype, dtype));
    }
    if view.shape != shape {
        let expected =
            format_args!("[batch, seqlen, heads, head_dim] must be {shape:?} to go with q, k and v");
        return Err(Error::invalid(name.shape, format!("{:?}", view.shape), expected));
    }
    Ok(())
}

/// Checks that Q and O go with keys and values in a KV cache.
fn on_cache(r: &AttentionRequest<'_>, KvPages { keys, .. }: &KvPages, p: &Problem) -> Result<(), Error> {
    let columns = if p.kv_dtype == DType::E4m3Scaled { E4m3Scaled::COLUMNS } else { keys.shape[3] };
    if columns != p.head_dim {
        if p.kv_dtype == DType::E4m3Scaled {
            let expected = format_args!("rows of e4m3_scaled stand for {columns} columns, which q must have");
            return Err(Error::invalid("head_dim", p.head_dim, expected));
        }
        let remedy = match (p.kv_dtype, columns) {
            (DType::E4m3, E4m3Scaled::ROW_BYTES) => "; for rows with their own scales, use `latent_scaled`",
            _ => "",
        };
        let dim = p.head_dim;
        let expected = format_args!("[pages, page, heads, head_dim] must end in q's head_dim {dim}{remedy}");
        return Err(Error::invalid("cache.keys.shape", format!("{:?}", keys.shape), expected));
    }
    let [shape, .., output] = p.shapes();
    if r.q.shape != shape {
        let expected = format_args!("varlen queries have one batch: it must be {shape:?}");
        return Err(Error::invalid(Q.shape, format!("{:?}", r.q.shape), expected));
    }
    if r.o.shape != output {
        let expected = match p.columns() {
            [k, v] if k == v => format!("it must be the shape of q, {output:?}"),
            [_, columns] => format!("it must be {output:?}: q's shape with the values' {columns} columns"),
        };
        return Err(Error::invalid(O.shape, format!("{:?}", r.o.shape), expected));
    }
    Ok(())
}

/// Checks the memory of workspace and counters.
fn scratch(scratch: &Scratch) -> Result<[Part; 2], Error> {
    let Scratch::Memory { workspace, counters } = scratch else { return Ok([NONE; 2]) };
    let counters = counters.map(|counters| {
        address(&COUNTERS, counters.address, 4)?;
        bytes_from(&COUNTERS, counters.address, counters.bytes)
    });
    Ok([(&WORKSPACE, Some(memory(workspace)?)), (&COUNTERS, counters.transpose()?)])
}
