//! Checks of backward requests.
use super::attention::{NONE, PARTS, is_like, parts};
use super::footprint::Footprint;
use super::lse::{natural, per_query_head};
use super::{Use, bias, cache, disjoint, input, memory, names, output};
use crate::request::{
    self, AttentionBackward, AttentionRequest, Bias, Index, Parts, Scratch, Splits, TableGradient,
};
use crate::{Error, MaskKind, Problem};
use spec::{GRADIENTS, Precision};

names!(
    D_O "d_o" D_LSE "d_lse" TABLE "the variant's table" DQ "dq" DK "dk" DV "dv" DSINKS "dsinks"
    DTABLE "dtable" DBIAS "dbias"
);

/// The largest head dim of backward kernels.
const MAX_HEAD_DIM: usize = 256;

/// The most entries per head of a table that trains. A kernel counts work tiles for each group of entries, in
/// words that the first kernel clears beside its rows.
const MAX_ENTRIES: usize = 1 << 16;

/// Checks the problem, the tensors that the forward has read and written, and the gradients. Returns the
/// problem and the parts: those of the forward come first.
pub(crate) fn backward(
    r: &AttentionBackward<'_>,
    planned: Option<&Problem>,
) -> Result<(Problem, Parts), Error> {
    // The scratch memory and the splits of the forward are no part of the backward pass.
    let forward = AttentionRequest { scratch: Scratch::None, splits: Splits::Auto, ..r.forward };
    has_kernels(&forward.problem())?;
    if forward.invariance.is_promised() {
        let feature = format_args!("gradients with invariance {:?}", forward.invariance);
        let remedy = "kernels and shares of gradients depend on the whole batch; leave invariance out of the \
                      forward that the backward pass describes";
        return Err(Error::unsupported(feature, remedy));
    }
    const { assert!(PARTS + 10 == request::PARTS, "a re-bind has the same parts in the same order") }
    let mut all = [NONE; PARTS + 10];
    let p = parts(&forward, planned, &mut all)?;
    let Some(lse) = &forward.lse else {
        let expected = "the backward pass reads the LSE that the forward has written: set it in the forward";
        return Err(Error::invalid("lse", "none", expected));
    };
    let [q, _, v, o] = p.shapes();
    let Some([k, _]) = forward.kv.tensors() else { return Err(no_tensors()) };
    let own = [(&D_O, &r.d_o, o), (&DQ, &r.dq, q), (&DK, &r.dk, k.shape), (&DV, &r.dv, v)];
    own.into_iter().try_for_each(|(name, view, shape)| is_like(name, view, p.grad_dtype, shape))?;
    let unit = "backward kernels read gradients of natural logarithms only; divide them by ln 2";
    let d_lse = r.d_lse.as_ref().map(|view| natural(&D_LSE, view, lse.shape, Use::Read, unit)).transpose()?;
    let workspace = match &r.scratch {
        Scratch::Memory { workspace, .. } => Some(memory(workspace)?),
        Scratch::None | Scratch::Fastest => None,
    };
    let dsinks = match (&r.dsinks, &forward.scores.sinks) {
        (Some(_), None) => {
            let expected = "the forward has no sinks: set them in the forward, or leave dsinks out";
            return Err(Error::invalid("dsinks", "some", expected));
        }
        (dsinks, _) => dsinks.as_ref().map(|view| per_query_head(&DSINKS, view, p.heads_q)).transpose()?,
    };
    let [table, dtable] = tables(r, &p)?;
    let dbias = r.dbias.as_ref().map(|view| dbias(view, r, &p)).transpose()?;
    all[PARTS..].copy_from_slice(&[
        (&D_O, Some(input(&D_O, &r.d_o)?)),
        (&D_LSE, d_lse),
        (&TABLE, table),
        (&DQ, Some(output(&DQ, &r.dq)?)),
        (&DK, Some(output(&DK, &r.dk)?)),
        (&DV, Some(output(&DV, &r.dv)?)),
        (&DSINKS, dsinks),
        (&DTABLE, dtable),
        (&DBIAS, dbias),
        (&super::WORKSPACE, workspace),
    ]);
    disjoint(&all, PARTS + 3)?;
    Ok((p, super::sizes(&all, PARTS + 3..all.len())))
}

/// Checks the gradient of a bias.
fn dbias(view: &Bias, r: &AttentionBackward<'_>, p: &Problem) -> Result<Footprint, Error> {
    let Some(bias) = &r.forward.scores.bias else {
        let expected = "the forward has no bias: set it in the forward, or leave dbias out";
        return Err(Error::invalid("dbias", "some", expected));
    };
    if view.dtype != bias.dtype {
        let expected = format_args!("it must be {}, as the bias is", bias.dtype.name());
        return Err(Error::invalid("dbias.dtype", view.dtype.name(), expected));
    }
    let [own, extents] = [view, bias].map(Bias::extents);
    if own != extents {
        let expected = format_args!(
            "they must be the bias' extents {extents:?}, in which a stride of 0 counts as an extent of 1; \
             give dbias the shape and the broadcast dimensions of the bias"
        );
        return Err(Error::invalid("dbias.shape", format!("extents {own:?}"), expected));
    }
    // A stride of 0 permits no other number of rows than the problem's.
    bias::view(&DBIAS, view, p)?;
    let footprint = bias::view(&DBIAS, &Bias { shape: own, ..*view }, p)?;
    if extents[2] != p.seqlen_q {
        let reason = "kernels add no rows of a bias: give the bias one row per query (expand it), and add \
                      the rows of its gradient";
        return Err(Error::unsupported("dbias of a bias with one row for all queries", reason));
    }
    if r.forward.variant.is_some() {
        let reason =
            "no kernel of a variant computes it: let the scores read a table, whose gradient is dtable";
        return Err(Error::unsupported("dbias with a variant", reason));
    }
    if footprint.overlaps_itself() {
        let value = format!("{:?} for shape {:?}", view.strides, view.shape);
        let expected = "rows, heads and batches must not overlap; use strides of a contiguous tensor";
        return Err(Error::invalid("dbias.strides", value, expected));
    }
    Ok(footprint)
}

/// Checks the table that a variant's scores read, and its gradient. Returns both, if the gradient is wanted.
fn tables(r: &AttentionBackward<'_>, p: &Problem) -> Result<[Option<Footprint>; 2], Error> {
    let Some(TableGradient { address, elements }) = r.dtable else { return Ok([None; 2]) };
    let Some(table) = r.forward.variant.and_then(|variant| variant.table()) else {
        let expected = "the forward has no variant whose scores name a table: give the scores a \
                        constant `TABLE`, or leave dtable out";
        return Err(Error::invalid("dtable", "some", expected));
    };
    let count = table.count as usize;
    if count == 0 || !count.is_multiple_of(p.heads_q) || count / p.heads_q > MAX_ENTRIES {
        let expected = format_args!(
            "a table that trains is [{} query heads][entries], with 1 to {MAX_ENTRIES} entries per head",
            p.heads_q
        );
        return Err(Error::invalid("variant", format!("a table of {count} entries"), expected));
    }
    let check = |name, address, elements| {
        cache::index(name, &Index { address, elements }, count as u64, "one per entry of the table")
    };
    Ok([Some(check(&TABLE, table.base, count as u64)?), Some(check(&DTABLE, address, elements)?)])
}

/// Returns the error of a backward pass on a KV cache.
pub(crate) fn no_tensors() -> Error {
    let reason = "gradients need K and V as tensors: run forward and backward on the tensors, not on a cache";
    Error::unsupported("backward on a KV cache", reason)
}

/// Checks that there may be backward kernels for a problem: names what none of them computes.
fn has_kernels(p: &Problem) -> Result<(), Error> {
    let none =
        |feature: &str, reason: &str| Err(Error::unsupported(format_args!("backward of {feature}"), reason));
    let [columns, values] = p.columns();
    match p.mask_kind() {
        _ if GRADIENTS.is_empty() => {
            let reason =
                "this build carries no backward kernels; enable the feature `training` of ferroflash";
            Err(Error::unsupported("backward", reason))
        }
        _ if p.cache.is_some() => Err(no_tensors()),
        _ if p.precision != Precision::Inputs => {
            let reason = "backward kernels take the precision of the inputs only";
            none(&format!("precision {}", p.precision.name()), reason)
        }
        _ if p.alibi && p.softcap.is_some() => {
            none("a softcap with ALiBi slopes", "backward kernels take one of them; leave the other one out")
        }
        MaskKind::Bits if p.softcap.is_some() => none(
            "a softcap with mask bits",
            "backward kernels with mask bits take no softcap; use a full mask, a causal mask or a window",
        ),
        _ if columns.max(values) > MAX_HEAD_DIM => Err(Error::unsupported(
            format_args!("backward of head_dim {}", columns.max(values)),
            format_args!(
                "backward kernels take at most {MAX_HEAD_DIM} columns; train this attention with your \
                 framework's operations"
            ),
        )),
        _ => Ok(()),
    }
}
