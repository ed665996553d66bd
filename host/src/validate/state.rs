//! Checks of partial states: attention whose O is f32.
use super::{LSE, O};
use crate::request::{AttentionRequest, Invariance, LseView, TensorView};
use crate::{Error, Problem};
use spec::{MaskKind, Precision};

const REMEDY: &str = "give o the dtype of q, or leave this out: kernels leave a state in f32 of dense \
                      tensors with a full or causal mask or a window, softcap and slopes";

/// Checks a problem whose O is f32. Selection checks the head dim.
pub(super) fn problem(p: &Problem) -> Result<(), Error> {
    let others = [
        ("varlen queries", p.varlen.is_some()),
        ("a KV cache", p.cache.is_some()),
        ("a variant", p.variant.is_some()),
        ("sinks", p.sinks),
        ("a bias", p.bias.is_some()),
        ("an invariance", p.invariance != Invariance::None),
        ("a precision", p.precision != Precision::Inputs),
    ];
    if let Some((name, _)) = others.iter().find(|(_, is_there)| *is_there) {
        return Err(Error::unsupported(format_args!("o.dtype f32 with {name}"), REMEDY));
    }
    match p.mask_kind() {
        MaskKind::Full | MaskKind::Causal | MaskKind::Local => Ok(()),
        _ => Err(Error::unsupported(format_args!("o.dtype f32 with mask {}", p.mask), REMEDY)),
    }
}

/// Checks the outputs of a request whose O is f32: O and the LSE have the layout of split-KV's states.
pub(super) fn outputs(r: &AttentionRequest<'_>, p: &Problem) -> Result<(), Error> {
    let others = [
        ("max_logits", r.max_logits.is_some()),
        ("max_logits_head", r.max_logits_head.is_some()),
        ("entropy", r.entropy.is_some()),
    ];
    if let Some((name, _)) = others.iter().find(|(_, is_there)| *is_there) {
        return Err(Error::unsupported(format_args!("o.dtype f32 with {name}"), REMEDY));
    }
    let Some(lse) = r.lse else {
        let expected = "a state has an LSE, by which it is merged; set it with `.lse(..)`";
        return Err(Error::invalid(LSE.name, "none", expected));
    };
    let o = TensorView::bhsd(r.o.address, r.o.elements, r.o.dtype, r.o.shape);
    if (0..4).any(|dim| r.o.shape[dim] > 1 && r.o.strides[dim] != o.strides[dim]) {
        let expected = format_args!("a state in f32 is [batch][heads][seqlen][head_dim]: {:?}", o.strides);
        return Err(Error::invalid(O.strides, format!("{:?}", r.o.strides), expected));
    }
    let whole = LseView::contiguous(lse.address, lse.elements, [p.batch, p.heads_q, p.seqlen_q]);
    if (0..2).any(|dim| whole.shape[dim] > 1 && lse.strides[dim] != whole.strides[dim]) {
        let expected = format_args!("the LSE of a state is contiguous: {:?}", whole.strides);
        return Err(Error::invalid(LSE.strides, format!("{:?}", lse.strides), expected));
    }
    Ok(())
}
