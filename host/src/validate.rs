//! Validation. A request that passes all checks can be launched without out-of-bounds accesses.
mod append;
mod attention;
mod backward;
mod bias;
mod cache;
mod divided;
mod dtypes;
mod footprint;
mod invariance;
mod keys;
mod latent;
mod lse;
mod mask;
mod merge;
mod problem;
mod rotary;
mod shared_prefixes;
mod state;
mod sum;
mod variant;

pub(crate) use append::append;
pub(crate) use attention::attention;
pub(crate) use backward::backward;
#[cfg(feature = "cudarc")]
pub(crate) use backward::no_tensors;
pub(crate) use cache::cache;
pub(crate) use merge::{merge, merged};
pub(crate) use problem::{another, problem};
pub(crate) use sum::sum;

use crate::Error;
use crate::request::{MAX_ROW_BYTES, PARTS, Parts, Region, TensorView};
use footprint::Footprint;
use std::ops::Range;

/// A part of a request: its name, and its bytes, if any.
pub(crate) type Part = (&'static Names, Option<Footprint>);

/// Checks that the written parts share no byte with any other part. The first `read` parts are only read; all
/// others are written.
pub(crate) fn disjoint(all: &[Part], read: usize) -> Result<(), Error> {
    for (at, (name, bytes)) in all.iter().enumerate().skip(read) {
        let Some(written) = bytes else { continue };
        for (other, bytes) in &all[..at] {
            if let Some(theirs) = bytes.as_ref().filter(|theirs| written.overlaps(theirs)) {
                return Err(overlap(name, other.address, written, theirs));
            }
        }
    }
    Ok(())
}

/// Returns the sizes of a valid request's parts.
fn sizes(all: &[Part], written: Range<usize>) -> Parts {
    let mut bytes = [0; PARTS];
    for (bytes, (_, footprint)) in bytes.iter_mut().zip(all) {
        *bytes = footprint.as_ref().and_then(Footprint::span).unwrap_or(0);
    }
    Parts { bytes, written: [written.start, written.end], alignment: 16 }
}

/// Checks a workspace. Does not check whether the workspace overlaps other memory.
fn memory(workspace: &Region) -> Result<Footprint, Error> {
    address(&WORKSPACE, workspace.address, 16)?;
    bytes_from(&WORKSPACE, workspace.address, workspace.bytes)
}

/// Checks that `bytes` bytes exist from an address on.
fn bytes_from(name: &Names, base: u64, bytes: u64) -> Result<Footprint, Error> {
    if bytes == 0 || base.checked_add(bytes).is_none() {
        let expected = "it must be 1 or more and end within 64 bits; if there is no workspace, name none";
        return Err(Error::invalid(name.bytes, bytes, expected));
    }
    Ok(Footprint::new(base, bytes, [(1, 0); 4]))
}

/// Checks `count` integers from `base` on, one per token. Does not check whether an output overlaps them.
fn per_token(name: &'static Names, base: u64, count: u64, wide: bool) -> Result<Part, Error> {
    let unit = if wide { 8 } else { 4 };
    address(name, base, unit)?;
    let footprint = Footprint::new(base, unit, [(count, unit), (1, 0), (1, 0), (1, 0)]);
    if count == 0 || footprint.span().is_none() {
        let expected = "it must be 1 or more, and they must end within 64 bits";
        return Err(Error::invalid(name.elements, count, expected));
    }
    Ok((name, Some(footprint)))
}

/// Names of a tensor's parts in errors.
pub(crate) struct Names {
    name: &'static str,
    address: &'static str,
    elements: &'static str,
    dtype: &'static str,
    shape: &'static str,
    strides: &'static str,
    bytes: &'static str,
}
macro_rules! names {
    ($($constant:ident $name:literal)*) => {
        $(pub(crate) const $constant: $crate::validate::Names = $crate::validate::Names {
            name: $name,
            address: concat!($name, ".address"),
            elements: concat!($name, ".elements"),
            dtype: concat!($name, ".dtype"),
            shape: concat!($name, ".shape"),
            strides: concat!($name, ".strides"),
            bytes: concat!($name, ".bytes"),
        };)*
    };
}
use names;
names!(
    Q "q" K "k" V "v" O "o" LSE "lse" SINKS "sinks" ALIBI "alibi" BIAS "bias" PREFIX "mask.prefix"
    MASK_BITS "mask.bits" WORKSPACE "workspace"
);

/// Checks an output. Does not check whether the output overlaps other tensors.
fn output(name: &Names, view: &TensorView) -> Result<Footprint, Error> {
    let footprint = input(name, view)?;
    if footprint.overlaps_itself() {
        let expected = "no stride may be 0, and an output's rows, heads and batches must not overlap; use \
                        strides of a contiguous tensor";
        return Err(strides(name, view, expected));
    }
    Ok(footprint)
}

/// Returns the error of a tensor's strides.
fn strides(name: &Names, view: &TensorView, expected: impl std::fmt::Display) -> Error {
    Error::invalid(name.strides, format!("{:?} for shape {:?}", view.strides, view.shape), expected)
}

/// Checks an input. Does not check whether an output overlaps it. The rows, heads and batches of an input may
/// overlap or repeat.
fn input(name: &Names, view: &TensorView) -> Result<Footprint, Error> {
    address(name, view.address, 16)?;
    let wrong = |expected: &dyn std::fmt::Display| Err(strides(name, view, expected));
    if view.shape[3] > 1 && view.strides[3] != 1 {
        return wrong(&"the last stride (head_dim) must be 1");
    }
    let bytes = view.element_bytes();
    let mut dims = [(1, 0); 4];
    for (dim, (&extent, &stride)) in dims.iter_mut().zip(view.shape.iter().zip(&view.strides)) {
        if extent == 1 {
            continue;
        }
        if stride < 0 {
            return wrong(&"no stride may be negative");
        }
        let Some(stride) = (stride as u64).checked_mul(bytes) else {
            return wrong(&"in bytes they must be below 2^64");
        };
        *dim = (extent as u64, stride);
    }
    if dims[..3].iter().any(|(_, stride)| stride % 16 != 0) {
        return wrong(&format_args!(
            "all strides but the last must be multiples of {} elements (16 bytes); copy into a contiguous \
             tensor",
            16 / bytes
        ));
    }
    if dims[1].1 >= MAX_ROW_BYTES {
        let feature = format_args!("{} with rows {} bytes apart", name.strides, dims[1].1);
        return Err(Error::unsupported(
            feature,
            format_args!("rows must be less than {MAX_ROW_BYTES} bytes apart"),
        ));
    }
    let footprint = Footprint::new(view.address, bytes, dims);
    fits(name.elements, &footprint, view.elements)?;
    Ok(footprint)
}

fn address(name: &Names, address: u64, alignment: u64) -> Result<(), Error> {
    if address != 0 && address.is_multiple_of(alignment) {
        return Ok(());
    }
    let expected = format_args!("it must be a device address that is a multiple of {alignment}");
    Err(Error::invalid(name.address, format!("{address:#x}"), expected))
}

/// The use of a tensor in a request.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Use {
    Read,
    Written,
}

/// Checks that a view stays in its buffer, and that the buffer ends within 64 bits. `field` is the name of
/// the buffer's size.
fn fits(field: &'static str, footprint: &Footprint, elements: u64) -> Result<(), Error> {
    match footprint.span().map(|span| span / footprint.unit) {
        Some(needed) if needed <= elements => Ok(()),
        Some(needed) => Err(Error::invalid(field, elements, format_args!("shape and strides need {needed}"))),
        None => Err(Error::invalid(field, elements, "shape and strides reach beyond 64 bits")),
    }
}

fn overlap(written: &Names, other: &'static str, a: &Footprint, b: &Footprint) -> Error {
    let range =
        |f: &Footprint| format!("{:#x}..{:#x}", f.base, f.base.saturating_add(f.span().unwrap_or(u64::MAX)));
    let expected = format_args!("{} must not overlap {other}, {}", written.name, range(b));
    Error::invalid(written.address, range(a), expected)
}
