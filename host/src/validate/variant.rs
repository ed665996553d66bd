//! Checks of the fields of a request that has a variant.
use crate::request::Mask;
use crate::{Error, MaskKind, Problem};

/// Checks that a variant's mask and scores permit the request's mask and scores.
pub(super) fn variant(p: &Problem) -> Result<(), Error> {
    let Some(variant) = p.variant else { return Ok(()) };
    let (name, kind) = (variant.name(), variant.mask());
    let goes = match (kind, p.mask) {
        (MaskKind::Local, mask) => matches!(mask, Mask::Full | Mask::Causal | Mask::Window { .. }),
        (_, Mask::Full) => true,
        (MaskKind::Causal, mask) => mask == Mask::Causal,
        _ => false,
    };
    if !goes {
        let expected = match kind {
            MaskKind::Local => {
                format!("variant {name} has mask local: the request's mask must be full, causal or a window")
            }
            kind => {
                format!("variant {name} has its own mask, {}: leave the request's mask unset", kind.name())
            }
        };
        return Err(Error::invalid("mask", p.mask, expected));
    }
    let local = kind == MaskKind::Local;
    let softcap = p.softcap.filter(|_| !local).map(|softcap| ("softcap", softcap.to_string()));
    let alibi = (p.alibi && !local).then(|| ("alibi", "slopes".to_owned()));
    if let Some((what, value)) = softcap.or(alibi) {
        let expected = format_args!(
            "only variants of mask local take this field; compute it in the scores of variant {name}, or \
             build the variant on `Scored<Local, ..>`"
        );
        return Err(Error::invalid(what, value, expected));
    }
    let bias = p.bias.map(|dtype| ("bias", dtype.name()));
    let sinks = (p.sinks && variant.scores().sink).then_some(("sinks", "one per head"));
    if let Some((what, value)) = bias.or(sinks) {
        let expected = format_args!(
            "variant {name} has scores of its own: leave this field unset and use the variant's parameters"
        );
        return Err(Error::invalid(what, value, expected));
    }
    Ok(())
}
