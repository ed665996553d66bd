//! Checks that kernels of a precision take a request.
use super::Query;
use super::refusals::front;
use crate::problem::MAX_ROWS;
use crate::{DType, Error, MaskKind, Problem};
use spec::Precision;

/// This error names a part of a request that kernels of its precision do not take.
pub(super) struct Lack {
    /// The part of the request.
    pub what: String,
    /// This text names what the kernels take.
    pub reason: String,
    /// The remedy, if it is not another precision.
    pub remedy: Option<&'static str>,
}

impl Lack {
    pub(super) fn new(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Lack { what: what.into(), reason: reason.into(), remedy: None }
    }

    /// Returns the error.
    pub(super) fn of(self, p: &Problem) -> Error {
        let (tensors, remedy) = match p.is_eight_bit() {
            true => (" of e4m3 tensors", "convert q, k and v to f16 or bf16"),
            false => ("", "use `Precision::Inputs`"),
        };
        let Lack { what, reason, remedy: own } = self;
        let feature = format_args!("precision {}{tensors} on {what}", p.precision.name());
        Error::unsupported(feature, format_args!("{reason}; {}", own.unwrap_or(remedy)))
    }
}

/// Returns what kernels of a precision that take KV caches of `dtype` do not take of the request's KV cache.
/// Few rows run if the request names a kernel.
pub(super) fn of_cache(p: &Problem, dtype: DType, is_named: bool) -> Option<Lack> {
    let (cache, name) = (p.cache?, dtype.name());
    let caches = format!("its kernels take KV caches of {name}");
    let lack = match () {
        () if cache.latent || cache.listed => Lack::new(
            "a latent cache",
            format!("its kernels take tensors, and KV caches of {name} with keys and values"),
        ),
        () if [p.kv_dtype, dtype] == [DType::E4m3, DType::Int8] => {
            let why = "its scores are products of int8, for which keys would be rounded a second time";
            Lack::new("a KV cache of e4m3", format!("{why}; {caches}"))
        }
        () if p.kv_dtype != dtype => Lack::new(format!("a KV cache of {}", p.kv_dtype.name()), caches),
        () if p.rows() <= MAX_ROWS && !is_named => Lack::new(
            format!("a KV cache with {} rows (queries x query heads per key head)", p.rows()),
            "up to 64 rows wait for the bytes of the cache, and this precision copies the values first",
        ),
        () => return None,
    };
    Some(lack)
}

/// Returns what kernels of a precision whose KV caches are of `dtype` do not take of the tensors' dtypes. A
/// check of the request's KV cache comes before.
pub(super) fn of_dtypes(p: &Problem, dtype: DType) -> Option<Lack> {
    let halves = p.o_dtype == p.dtype && matches!(p.dtype, DType::F16 | DType::Bf16);
    let reason = match p.cache {
        Some(_) if halves => return None,
        Some(_) => {
            format!("on a KV cache of {}, its kernels take Q and O of f16, or both of bf16", dtype.name())
        }
        None if halves && p.kv_dtype == p.dtype => return None,
        None => "its kernels take Q, K, V and O of f16, or all of bf16".to_owned(),
    };
    Some(Lack::new("these dtypes", reason))
}

/// Checks that kernels of the request's precision take its tensors, mask and scores, and run on the device.
/// [`Precision::Fp8`] has its own check, `select::fp8::takes`. Few rows on a KV cache run if the request
/// names a kernel.
///
/// # Errors
/// Returns [`Error::Unsupported`], which names the precision, what it lacks, and the remedy.
pub(super) fn has_precision(q: &Query<'_>, is_named: bool) -> Result<(), Error> {
    let p = q.problem;
    match p.precision {
        Precision::Inputs => Ok(()),
        _ => lack(q, is_named).map_or(Ok(()), |lack| Err(lack.of(p))),
    }
}

/// Names a problem's mask, and what a precision lacks beside it: sinks, a bias, a variant, and slopes if it
/// lacks these.
pub(super) fn mask_with(p: &Problem, slopes: bool) -> String {
    let variant = ("a variant", p.variant.is_some());
    let scores = [("slopes", slopes), ("sinks", p.sinks), ("a bias", p.bias.is_some()), variant];
    let scores: Vec<_> = scores.into_iter().filter_map(|(name, has)| has.then_some(name)).collect();
    let with = if scores.is_empty() { "" } else { " with " };
    format!("mask {}{with}{}", p.mask, scores.join(" and "))
}

/// Returns what the request has that kernels with scores of int8 do not take.
fn lack(q: &Query<'_>, is_named: bool) -> Option<Lack> {
    let (p, arch) = (q.problem, q.on.arch());
    if p.cache.is_some() && p.precision == Precision::Int8F16 {
        return Some(Lack::new(front(p), "its kernels take dense and varlen tensors"));
    }
    if let Some(lack) = of_cache(p, DType::Int8, is_named) {
        return Some(lack);
    }
    let scores = p.sinks || p.bias.is_some();
    let masked = matches!(q.kind.mask, MaskKind::Full | MaskKind::Causal | MaskKind::Local);
    if scores || !masked || p.variant.is_some() {
        let takes = "its kernels take full and causal masks and windows, softcap and slopes";
        return Some(Lack::new(mask_with(p, false), takes));
    }
    if let Some(lack) = of_dtypes(p, DType::Int8) {
        return Some(lack);
    }
    let [k, v] = p.columns();
    let (of, most) = match (p.precision, p.cache) {
        (Precision::Int8Fp8, None) => ("", 256),
        (Precision::Int8Fp8, _) => ("on KV caches, ", 128),
        _ => ("", 128),
    };
    let lack = match () {
        () if k.max(v) > most => {
            Lack::new(p.named_columns(), format!("{of}its kernels take head dims up to {most}"))
        }
        () if k != v => Lack {
            remedy: p.cache.map(|_| match k < v {
                true => "pad q and the keys of the cache with zeros to v's columns, and set the scale of k's",
                false => "pad the values of the cache with zeros to k's columns, which o then has",
            }),
            ..Lack::new(p.named_columns(), "its kernels take equal head dims")
        },
        () if !q.kind.equal_strides => Lack {
            remedy: Some("copy the values into a cache with the strides of the keys"),
            ..Lack::new(
                "cache.values.strides other than cache.keys.strides",
                "its kernels find a key and its value by one index",
            )
        },
        () if p.precision == Precision::Int8F16 => return None,
        () if arch == 90 => Lack::new(
            q.on.name.clone(),
            "compute capability 9.0 computes `mma.sync` of e4m3 by conversions and 16-bit products; its own \
             kernels have precision fp8, on tensors and caches of e4m3",
        ),
        () if arch < 89 => Lack::new(
            q.on.name.clone(),
            "products of e4m3 need compute capability 8.9, as of an L4, or newer",
        ),
        () => return None,
    };
    Some(lack)
}
