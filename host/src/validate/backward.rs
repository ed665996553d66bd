//! Checks of backward requests.
use super::attention::{NONE, PARTS, is_like, parts};
use super::lse::{natural, per_query_head};
use super::{Use, disjoint, input, memory, names, output};
use crate::request::{AttentionBackward, AttentionRequest, Scratch, Splits};
use crate::{Error, Problem};
use spec::GRADIENTS;

names!(D_O "d_o" D_LSE "d_lse" DQ "dq" DK "dk" DV "dv" DSINKS "dsinks");

/// The largest head dim of backward kernels.
const MAX_HEAD_DIM: usize = 256;

/// Checks the problem, the tensors that the forward has read and written, and the gradients.
pub(crate) fn backward(r: &AttentionBackward<'_>, planned: Option<&Problem>) -> Result<Problem, Error> {
    // The scratch memory and the splits of the forward are no part of the backward pass.
    let forward = AttentionRequest { scratch: Scratch::None, splits: Splits::Auto, ..r.forward };
    has_kernels(&forward.problem())?;
    let mut all = [NONE; PARTS + 7];
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
    all[PARTS..].copy_from_slice(&[
        (&D_O, Some(input(&D_O, &r.d_o)?)),
        (&D_LSE, d_lse),
        (&DQ, Some(output(&DQ, &r.dq)?)),
        (&DK, Some(output(&DK, &r.dk)?)),
        (&DV, Some(output(&DV, &r.dv)?)),
        (&DSINKS, dsinks),
        (&super::WORKSPACE, workspace),
    ]);
    disjoint(&all, PARTS + 2)?;
    Ok(p)
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
        _ if p.alibi && p.softcap.is_some() => {
            none("a softcap with ALiBi slopes", "backward kernels take one of them; leave the other one out")
        }
        _ if columns.max(values) > MAX_HEAD_DIM => Err(Error::unsupported(
            format_args!("backward of head_dim {}", columns.max(values)),
            format_args!(
                "backward kernels take at most {MAX_HEAD_DIM} columns; train this attention with your \
                 framework's operations"
            ),
        )),
        // A variant's kernels have their own head dims.
        _ if p.variant.is_none() && !GRADIENTS.iter().any(|kernel| kernel.takes_columns(p.columns())) => {
            Err(Error::unsupported(
                format_args!("backward of head_dim {columns} with head_dim_v {values}"),
                format_args!(
                    "backward kernels take equal numbers of columns, or at most 192 of k with 128 of v; fill \
                     the missing columns of the narrower tensors with zeros, up to {}",
                    columns.max(values)
                ),
            ))
        }
        _ => Ok(()),
    }
}
