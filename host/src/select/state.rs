//! Selection among kernels that leave a state in f32: those with split-KV, of which one split has all keys.
use super::{ASKED, Choice, Query};
use crate::{AttnInfo, Error};
use spec::Class;

const HOPPER: &str = "a state in f32, as split-KV leaves it: warpgroups and TMA";
const PORTABLE: &str = "a state in f32, as split-KV leaves it";

/// Returns the kernel of a problem whose O is f32: Hopper's, or the portable one.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel has the head dim, or [`Error::Invalid`] if the named kernel
/// leaves no such state.
pub(super) fn choose(q: &Query<'_>, config: Option<&str>) -> Result<Choice, Error> {
    // A state has the columns of its kernel.
    let has_columns = |e: &AttnInfo| e.columns().map(|columns| columns as usize) == q.problem.columns();
    let all: Vec<_> = q.solving(Class::Dense).filter(|e| e.splits && has_columns(e)).collect();
    if let Some(name) = config {
        let named = all.iter().find(|e| e.contract.symbol == name).ok_or_else(|| {
            let symbols: Vec<_> = all.iter().map(|e| e.contract.symbol).collect();
            let expected = format_args!("it must leave a state in f32: one of [{}]", symbols.join(", "));
            Error::invalid("config", name, expected)
        })?;
        q.on.runs(&named.contract)?;
        return Ok(Choice::new(*named, ASKED));
    }
    let portable = all.iter().find(|e| !e.has_maps() && q.runs(e));
    let hopper = all.iter().find(|e| e.has_maps() && q.runs(e) && q.layout.suits(e).is_ok());
    match (hopper, portable) {
        (Some(hopper), portable) => {
            Ok(Choice { fallback: portable.copied(), ..Choice::new(*hopper, HOPPER) })
        }
        (None, Some(portable)) => Ok(Choice::new(*portable, PORTABLE)),
        (None, None) => {
            let feature = format_args!("o.dtype f32 with {}", q.problem.named_columns());
            let reason = "kernels leave a state in f32 of head_dim 64 and 128; give o the dtype of q";
            Err(Error::unsupported(feature, reason))
        }
    }
}
