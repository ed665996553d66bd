//! The one place where a request is checked. What passes here can be launched without reading or writing out
//! of bounds.
use self::lse::{log_sum_exp, sinks, slopes};
use crate::footprint::Footprint;
use crate::{DType, Error, Forward, Problem, TensorView, Workspace};

pub(crate) mod append;
pub(crate) mod cache;
pub(crate) mod decode;
mod lse;
pub(crate) mod merge;
mod packed;

/// Longest sequence. Positions, shifts and windows of a padded tile are summed in 32 bits on the device.
pub const MAX_SEQLEN: usize = (1 << 30) - 256;
/// Largest head dim.
pub const MAX_HEAD_DIM: usize = 512;
/// Rows lie less than this many bytes apart: the distance of a tile's rows is computed in 32 bits on the
/// device.
pub const MAX_ROW_BYTES: u64 = 1 << 27;
/// Factors of scores, times log2 e, that slopes may be divided by.
const BESIDE_ALIBI: std::ops::RangeInclusive<f32> = 1.4e-20..=1.5e20;
/// Blocks of a launch.
const MAX_TILES: u64 = 1 << 31;

/// Checks what does not depend on tensors: sizes, scale, softcap.
pub(crate) fn problem(p: &Problem) -> Result<(), Error> {
    let lengths = lengths(p);
    let sizes = [
        (batch(p), p.batch),
        lengths[0],
        lengths[1],
        lengths[2],
        lengths[3],
        ("heads_q", p.heads_q),
        ("heads_k", p.heads_k),
        ("head_dim", p.head_dim),
    ];
    if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(Error::invalid(what, 0, "every size must be 1 or more"));
    }
    if let DType::E4m3 | DType::F32 = p.dtype {
        let feature = format_args!("dtype {}", p.dtype.name());
        let reason = "q, k, v and o are f16 or bf16; e4m3 is a cache's alone, f32 a partial state's";
        return Err(Error::unsupported(feature, reason));
    }
    if !p.heads_q.is_multiple_of(p.heads_k) {
        return Err(Error::invalid(
            "heads_q",
            p.heads_q,
            format_args!("it must be a multiple of heads_k = {}", p.heads_k),
        ));
    }
    if !p.head_dim.is_multiple_of(8) || p.head_dim > MAX_HEAD_DIM {
        let reason = format_args!("kernels take multiples of 8 up to {MAX_HEAD_DIM}");
        return Err(Error::unsupported(format_args!("head_dim {}", p.head_dim), reason));
    }
    for (what, length) in lengths {
        if length > MAX_SEQLEN {
            let reason = format_args!("sequences, packed ones together, have at most {MAX_SEQLEN} positions");
            return Err(Error::unsupported(format_args!("{what} {length}"), reason));
        }
    }
    let heads = (p.batch as u64).checked_mul(p.heads_q as u64);
    if heads.is_none_or(|heads| heads >= MAX_TILES) {
        let feature = format_args!("batch {} with {} query heads", p.batch, p.heads_q);
        return Err(Error::unsupported(
            feature,
            "a launch has less than 2^31 blocks, at least one a head; split the batch",
        ));
    }
    scores(p)
}

/// What a problem is, field by field as the caller has named them.
pub(crate) fn named(p: &Problem) -> Vec<(&'static str, String)> {
    let mut all = vec![("packed", format!("{}", p.packed.is_some())), ("dtype", p.dtype.name().to_owned())];
    let sizes =
        [(batch(p), p.batch), ("heads_q", p.heads_q), ("heads_k", p.heads_k), ("head_dim", p.head_dim)];
    all.extend(sizes.into_iter().chain(lengths(p)).map(|(what, size)| (what, size.to_string())));
    all.push(("scale", p.softmax_scale().to_string()));
    all.push(("softcap", p.softcap.map_or("none".to_owned(), |softcap| softcap.to_string())));
    all.push(("alibi", p.alibi.to_string()));
    all.push(("mask", p.mask.to_string()));
    all.push(("alignment", format!("{:?}", p.alignment)));
    all
}

/// That a request is not what a plan was made for, by the first field in which they differ.
pub(crate) fn another(asked: Vec<(&'static str, String)>, planned: Vec<(&'static str, String)>) -> Error {
    let mut pairs = asked.into_iter().zip(planned);
    match pairs.find(|(asked, planned)| asked != planned) {
        Some(((what, asked), (_, planned))) => {
            Error::invalid(what, asked, format_args!("the plan was made for {planned}; make another"))
        }
        None => Error::invalid("request", "another one", "it must be what the plan was made for"),
    }
}

/// How the caller has named the number of sequences.
fn batch(p: &Problem) -> &'static str {
    if p.packed.is_some() { "packed.batch" } else { "batch" }
}

/// Lengths of sequences, and of all packed ones together, as the caller has named them.
fn lengths(p: &Problem) -> [(&'static str, usize); 4] {
    let [[_, rows_q, ..], [_, rows_k, ..]] = p.shapes();
    let [longest_q, longest_k] = match p.packed {
        None => ["seqlen_q", "seqlen_k"],
        Some(_) => ["packed.max_seqlen_q", "packed.max_seqlen_k"],
    };
    [(longest_q, p.seqlen_q), (longest_k, p.seqlen_k), ("rows of q", rows_q), ("rows of k", rows_k)]
}

/// Checks what happens to scores. The kernel computes in base 2, so the converted numbers must be finite and
/// above 0 as well.
fn scores(p: &Problem) -> Result<(), Error> {
    let scale = p.softmax_scale();
    if !scale.is_finite() {
        return Err(Error::invalid("scale", scale, "it must be a finite number above 0"));
    }
    if scale <= 0.0 {
        return Err(Error::unsupported(
            format_args!("scale {scale}"),
            "row maxima are taken before scaling, so the scale must be above 0; negate Q for a negative one",
        ));
    }
    if let Some(softcap) = p.softcap
        && !(softcap.is_finite() && softcap > 0.0)
    {
        return Err(Error::invalid("softcap", softcap, "it must be a finite number above 0, or none"));
    }
    let (scale_log2, ratio) = base_two(p);
    let derived = match p.softcap {
        None => [Some(("scale", scale, "scale * log2(e)", scale_log2)), None],
        Some(softcap) => [
            Some(("softcap", softcap, "softcap * log2(e)", scale_log2)),
            Some(("scale", scale, "scale / softcap", ratio)),
        ],
    };
    if p.alibi && !BESIDE_ALIBI.contains(&scale_log2) {
        let (what, value) = p.softcap.map_or(("scale", scale), |softcap| ("softcap", softcap));
        let reason = "slopes are divided by it, so that it must be between 1e-20 and 1e20";
        return Err(Error::unsupported(format_args!("{what} {value:e} with ALiBi slopes"), reason));
    }
    let mut wrong = derived.into_iter().flatten().filter(|(.., number)| !number.is_normal());
    wrong.next().map_or(Ok(()), |(what, value, formula, number)| {
        let expected = format_args!("{formula} is {number:e}, and must be a normal f32");
        Err(Error::invalid(what, format_args!("{value:e}"), expected))
    })
}

/// `FwdParams::scale_log2` and `FwdParams::softcap`.
pub(crate) fn base_two(p: &Problem) -> (f32, f32) {
    match p.softcap {
        None => (p.softmax_scale() * std::f32::consts::LOG2_E, 0.0),
        Some(softcap) => (softcap * std::f32::consts::LOG2_E, p.softmax_scale() / softcap),
    }
}

/// Checks the problem and every tensor, and returns the problem.
pub(crate) fn forward(f: &Forward<'_>) -> Result<Problem, Error> {
    let p = f.problem();
    problem(&p)?;
    let [query, key] = p.shapes();
    for (name, view, shape) in [(&Q, &f.q, query), (&K, &f.k, key), (&V, &f.v, key), (&O, &f.o, query)] {
        if view.dtype != p.dtype {
            let expected = format_args!("all tensors must have q's, {}", p.dtype.name());
            return Err(Error::invalid(name.dtype, view.dtype.name(), expected));
        }
        if view.shape != shape {
            let expected =
                format_args!("[batch, seqlen, heads, head_dim] must be {shape:?} to go with q and k");
            return Err(Error::invalid(name.shape, format!("{:?}", view.shape), expected));
        }
    }
    let [q, k, v] = [input(&Q, &f.q)?, input(&K, &f.k)?, input(&V, &f.v)?];
    let output = output(&O, &f.o)?;
    let lse = f.lse.as_ref().map(|view| log_sum_exp(view, &p)).transpose()?;
    let workspace = f.workspace.as_ref().map(memory).transpose()?;
    let [q, k, v, output] = [q, k, v, output].map(Some);
    let [starts_q, starts_k, used] = packed::packed(f)?;
    let alibi = (&ALIBI, f.alibi.as_ref().map(|view| slopes(view, &p)).transpose()?);
    let [read_q, read_k, read_v] = [(&Q, q), (&K, k), (&V, v)];
    let [written, lse, workspace] = [(&O, output), (&LSE, lse), (&WORKSPACE, workspace)];
    disjoint(&[read_q, read_k, read_v, starts_q, starts_k, used, alibi, written, lse, workspace], 7)?;
    Ok(p)
}

/// A part of a request: its name, and its bytes where it has some.
pub(crate) type Part = (&'static Names, Option<Footprint>);

/// Checks that what is written, all but the first `read` parts, shares no byte with any other part.
pub(crate) fn disjoint(all: &[Part], read: usize) -> Result<(), Error> {
    let pairs = (read..all.len()).flat_map(|written| (0..written).map(move |other| (written, other)));
    for ((name, written), (other, theirs)) in pairs.map(|(written, other)| (all[written], all[other])) {
        if let (Some(written), Some(theirs)) = (written, theirs)
            && written.overlaps(&theirs)
        {
            return Err(overlap(name, other.address, &written, &theirs));
        }
    }
    Ok(())
}

/// Checks the workspace of a request whose tensors have been checked.
pub(crate) fn workspace(f: &Forward<'_>) -> Result<(), Error> {
    let Some(workspace) = f.workspace.as_ref().map(memory).transpose()? else { return Ok(()) };
    let [q, k, v] = [input(&Q, &f.q)?, input(&K, &f.k)?, input(&V, &f.v)?];
    let lse = f.lse.as_ref().map(|view| log_sum_exp(view, &f.problem())).transpose()?;
    let alibi = f.alibi.as_ref().map(|view| slopes(view, &f.problem())).transpose()?;
    let inputs = [(&Q, Some(q)), (&K, Some(k)), (&V, Some(v)), (&ALIBI, alibi)];
    let tensors = inputs.into_iter().chain([(&O, Some(output(&O, &f.o)?)), (&LSE, lse)]);
    for (name, tensor) in tensors.chain(packed::packed(f)?) {
        if let Some(tensor) = tensor.filter(|tensor| workspace.overlaps(tensor)) {
            return Err(overlap(&WORKSPACE, name.address, &workspace, &tensor));
        }
    }
    Ok(())
}

/// Checks a workspace by itself.
fn memory(workspace: &Workspace) -> Result<Footprint, Error> {
    address(&WORKSPACE, workspace.address, 16)?;
    bytes_from(&WORKSPACE, workspace.address, workspace.bytes)
}

/// Checks that there are bytes from an address on.
fn bytes_from(name: &Names, base: u64, bytes: u64) -> Result<Footprint, Error> {
    if bytes == 0 || base.checked_add(bytes).is_none() {
        return Err(Error::invalid(name.bytes, bytes, "it must be 1 or more and end within 64 bits"));
    }
    Ok(Footprint { base, unit: bytes, dims: [(1, 0); 4] })
}

/// How errors name a tensor's parts.
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
names!(Q "q" K "k" V "v" O "o" LSE "lse" SINKS "sinks" ALIBI "alibi" WORKSPACE "workspace");

/// Checks an output by itself.
fn output(name: &Names, view: &TensorView) -> Result<Footprint, Error> {
    let footprint = input(name, view)?;
    if footprint.overlaps_itself() {
        let expected = "each must be at least as large as what lies within it, and none 0: an output's rows, \
                        heads or batches must not overlap";
        return Err(strides(name, view, expected));
    }
    Ok(footprint)
}

/// What is wrong with a tensor's strides.
fn strides(name: &Names, view: &TensorView, expected: impl std::fmt::Display) -> Error {
    Error::invalid(name.strides, format!("{:?} for shape {:?}", view.strides, view.shape), expected)
}

/// Checks what is only read by itself: it may repeat itself, and its rows, heads and batches may overlap.
fn input(name: &Names, view: &TensorView) -> Result<Footprint, Error> {
    address(name, view.address, 16)?;
    let wrong = |expected: &dyn std::fmt::Display| Err(strides(name, view, expected));
    if view.shape[3] > 1 && view.strides[3] != 1 {
        return wrong(&"the last (head_dim) must be 1: columns are contiguous");
    }
    let bytes = view.element_bytes();
    let mut dims = [(1, 0); 4];
    for (dim, (&extent, &stride)) in dims.iter_mut().zip(view.shape.iter().zip(&view.strides)) {
        if extent == 1 {
            continue;
        }
        if stride < 0 {
            return wrong(&"none may be negative");
        }
        let Some(stride) = (stride as u64).checked_mul(bytes) else {
            return wrong(&"in bytes they must be below 2^64");
        };
        *dim = (extent as u64, stride);
    }
    if dims[..3].iter().any(|(_, stride)| stride % 16 != 0) {
        return wrong(&format_args!(
            "all but the last must be multiples of {} elements (16 bytes)",
            16 / bytes
        ));
    }
    if dims[1].1 >= MAX_ROW_BYTES {
        let feature = format_args!("{} with rows {} bytes apart", name.strides, dims[1].1);
        return Err(Error::unsupported(
            feature,
            format_args!("rows lie less than {MAX_ROW_BYTES} bytes apart"),
        ));
    }
    let footprint = Footprint { base: view.address, unit: bytes, dims };
    fits(name, &footprint, view.elements)?;
    Ok(footprint)
}

fn address(name: &Names, address: u64, alignment: u64) -> Result<(), Error> {
    if address != 0 && address.is_multiple_of(alignment) {
        return Ok(());
    }
    let expected = format_args!("it must be a device address that is a multiple of {alignment}");
    Err(Error::invalid(name.address, format!("{address:#x}"), expected))
}

/// What a request does with a tensor.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Use {
    Read,
    Written,
}

/// Checks that a view stays in its buffer, and the buffer in 64 bits.
fn fits(name: &Names, footprint: &Footprint, elements: u64) -> Result<(), Error> {
    let span = footprint.span().filter(|span| footprint.base.checked_add(*span).is_some());
    match span.map(|span| span / footprint.unit) {
        Some(needed) if needed <= elements => Ok(()),
        Some(needed) => {
            Err(Error::invalid(name.elements, elements, format_args!("shape and strides need {needed}")))
        }
        None => Err(Error::invalid(name.elements, elements, "shape and strides reach beyond 64 bits")),
    }
}

fn overlap(written: &Names, other: &'static str, a: &Footprint, b: &Footprint) -> Error {
    let range =
        |f: &Footprint| format!("{:#x}..{:#x}", f.base, f.base.saturating_add(f.span().unwrap_or(u64::MAX)));
    let expected = format_args!("{} must not overlap {other}, {}", written.name, range(b));
    Error::invalid(written.address, range(a), expected)
}

/// The mask as an entry's kind and as the kernel's window.
pub(crate) fn mask(p: &Problem) -> (spec::MaskKind, spec::Window) {
    const UNBOUNDED: i32 = spec::Window::UNBOUNDED;
    let clamp = |side: Option<u32>| side.map_or(UNBOUNDED, |n| n.min(UNBOUNDED as u32) as i32);
    let (left, right) = p.mask.sides();
    let (left, right) = (clamp(left), clamp(right));
    let top_left = p.alignment == crate::Alignment::TopLeft;
    // Sequences that pass validation are too short to wrap.
    let shift = if top_left { 0 } else { (p.seqlen_k as i32).wrapping_sub(p.seqlen_q as i32) };
    let kind = match (left, right) {
        _ if p.softcap.is_some() || p.alibi => spec::MaskKind::Local,
        (UNBOUNDED, UNBOUNDED) => spec::MaskKind::Full,
        (UNBOUNDED, 0) => spec::MaskKind::Causal,
        _ => spec::MaskKind::Local,
    };
    (kind, spec::Window { shift, left, right })
}
