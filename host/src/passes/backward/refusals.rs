//! The errors of backward problems that no kernel solves.
use crate::{Error, Problem, select};
use spec::{AttnInfo, GRADIENTS, Pass};

/// The remedy for a request that has too many columns for its mask or its bias.
const ELSEWHERE: &str = "train this attention with your framework's operations";

/// Returns the error for a problem whose `pass` no kernel computes.
pub(super) fn unsolved(p: &Problem, pass: Pass) -> Error {
    let (dtype, columns) = (p.dtype.name(), p.named_columns());
    if let Some(variant) = p.variant {
        let feature = format_args!("backward of variant {}", variant.name());
        let (results, kernels) = match pass {
            Pass::Dq => ("dQ", "both kernels, `With<BwdDkDv<..>>` and `With<BwdDq<..>>`"),
            Pass::Table => ("the table's gradient", "`With<BwdTable<..>>`"),
            _ => ("dK and dV", "both kernels, `With<BwdDkDv<..>>` and `With<BwdDq<..>>`"),
        };
        let reason = format_args!(
            "it has no kernel that computes {results} of {dtype} tensors with {columns}: list {kernels}"
        );
        return Error::unsupported(feature, reason);
    }
    if p.head_dim != p.head_dim_v {
        let reason = format_args!(
            "portable backward kernels take unequal numbers of columns up to 192 of k with 128 of v, with \
             full and causal masks without softcap, slopes and biases; fill the missing columns of the \
             narrower tensors with zeros, up to {}",
            p.head_dim.max(p.head_dim_v)
        );
        return Error::unsupported(format_args!("backward of mask {} with {columns}", p.mask), reason);
    }
    let kind = p.mask_kind();
    let Some(bias) = p.bias else {
        let most = most_columns(|e| e.mask == kind);
        let reason = format_args!("backward kernels of this mask take at most {most} columns; {ELSEWHERE}");
        return Error::unsupported(format_args!("backward of mask {} with {columns}", p.mask), reason);
    };
    let of = |e: &&AttnInfo| e.dtype == p.dtype && e.scores.bias.is_some();
    let takes =
        |mask, bias| GRADIENTS.iter().filter(of).any(|e| e.mask == mask && e.scores.bias == Some(bias));
    let [what, remedy] = select::beside_bias(p, takes).unwrap_or_else(|| {
        let most = most_columns(|e| of(&e));
        [columns, format!("backward kernels of biases take at most {most} columns; {ELSEWHERE}")]
    });
    Error::unsupported(format_args!("backward of a bias of {} with {what}", bias.name()), remedy)
}

/// Returns the largest head dim of these backward kernels.
fn most_columns(is_asked: impl Fn(&AttnInfo) -> bool) -> u32 {
    GRADIENTS.iter().filter(|kernel| is_asked(kernel)).map(|kernel| kernel.head_dim).max().unwrap_or_default()
}
