//! The errors of problems that no kernel solves.
use super::Query;
use crate::request::Splits;
use crate::{AttnInfo, Contract, DType, Error, MaskKind, Problem};
use spec::{Class, ProblemKind};

/// The reason and the remedy for int8 caches of more than 256 columns.
pub(crate) const WIDE_INT8: &str = "int8 KV caches support head_dim up to 256; use a 16-bit cache";

/// Checks that kernels with the request's mask take its softcap and slopes.
///
/// # Errors
/// Returns [`Error::Unsupported`], which names the mask and the scores.
pub(crate) fn goes_together(p: &Problem) -> Result<(), Error> {
    let kind = p.mask_kind();
    let (has_softcap, reason) = match kind {
        MaskKind::Prefix | MaskKind::Chunked => (
            p.softcap.is_some(),
            format!(
                "kernels with mask {} take neither softcap nor slopes; use a full mask, a causal mask or a \
                 window",
                kind.name()
            ),
        ),
        MaskKind::Bits => {
            let reason = "slopes need positions, and a draft's position is its depth in the tree, which no \
                          request states; compute the slopes in scores of your own";
            (false, reason.to_owned())
        }
        _ => return Ok(()),
    };
    let scores = [("softcap", has_softcap), ("ALiBi slopes", p.alibi)];
    match scores.into_iter().find(|(_, is_there)| *is_there) {
        None => Ok(()),
        Some((scores, _)) => Err(Error::unsupported(format_args!("{scores} with mask {}", p.mask), reason)),
    }
}

/// Checks that the request does not need a number of splits that only decode kernels can make. Every kernel
/// on KV caches accepts chunks: without split-KV, the result of a sequence depends on that sequence alone.
pub(crate) fn needs_no_splits(p: &Problem) -> Result<(), Error> {
    const REASON: &str = "only decode kernels support splits: at most 64 rows (queries x query heads per key \
                          head), equal query counts per sequence, bottom-right, without ALiBi slopes; leave \
                          splits out";
    match p.splits {
        Splits::Exactly(2..) => Err(Error::unsupported(format_args!("{:?}", p.splits), REASON)),
        _ => Ok(()),
    }
}

/// Checks that a merge kernel may add a problem's sinks.
///
/// # Errors
/// Returns [`Error::Unsupported`] for varlen sequences, because a merge would write their padding rows.
pub(super) fn takes_merge(p: &Problem) -> Result<(), Error> {
    if p.varlen.is_none() {
        return Ok(());
    }
    let reason = "no kernel for varlen sequences of this head dim, mask and dtype of keys takes sinks, and \
                  a merge kernel would write padding rows; with head dims up to 128, use keys in the \
                  queries' dtype; or ask for the LSE, fill it with -inf before the launch, and add the \
                  sinks with `Merge`";
    Err(Error::unsupported(format_args!("attention sinks for {p}"), reason))
}

/// Checks that a kernel of the variant has the tile of the block mask.
///
/// # Errors
/// Returns [`Error::Invalid`], which lists the tiles of the variant's kernels.
pub(super) fn has_tile(q: &Query<'_>) -> Result<(), Error> {
    let (p, kind) = (q.problem, ProblemKind { tile: None, ..q.kind });
    let (Some(variant), Some([m, n])) = (p.variant, p.block_tile) else { return Ok(()) };
    let all = || q.class(kind.class()).filter(|e| e.solves(&kind));
    if all().next().is_none() || all().any(|e| [e.tile_m, e.tile_n] == [m, n]) {
        return Ok(());
    }
    let tiles: Vec<_> = all().map(|e| format!("{} x {}", e.tile_m, e.tile_n)).collect();
    let expected = format_args!(
        "kernels of variant {} for {}, {} and this head_dim have tiles of {} queries and keys; make the \
         lists for one of these",
        variant.name(),
        p.dtype.name(),
        front(p),
        tiles.join(", ")
    );
    Err(Error::invalid("block_mask.tile", format_args!("{m} x {n}"), expected))
}

/// Returns the kernels among these that read the dtypes of the request's tensors.
pub(super) fn of_front<'k>(
    q: &Query<'_>,
    kernels: impl Iterator<Item = &'k AttnInfo>,
) -> impl Iterator<Item = &'k AttnInfo> {
    let kind = q.kind;
    kernels.filter(move |e| e.has_dtypes_of(&kind))
}

/// Returns the request's kind of tensors, in words.
pub(super) const fn front(p: &Problem) -> &'static str {
    match (p.varlen, p.cache) {
        (_, Some(_)) => "keys on a KV cache",
        (Some(_), None) => "varlen tensors",
        (None, None) => "dense tensors",
    }
}

/// Returns the error for a problem that no kernel with work tiles solves on this device.
pub(super) fn no_tiles(q: &Query<'_>, all: &[&'static AttnInfo]) -> Error {
    let (p, special) = (q.problem, q.needs_params());
    let rank = |e: &&&AttnInfo| (e.has_maps(), e.columns(), e.mask != q.kind.mask);
    let best = all.iter().filter(|e| special || !e.has_maps()).min_by_key(rank);
    match best.map(|e| runs(q, e)) {
        Some(Err(_)) if p.cache.is_none() && !special => {
            let (dtype, columns, mask) = (p.dtype.name(), p.named_columns(), q.kind.mask.name());
            let feature = format_args!("{dtype} {columns} {mask} on {}", q.on.name);
            let bytes = q.on.smem_per_block;
            let reason = format_args!("no kernel fits into its {bytes} bytes of shared memory per block");
            Error::unsupported(feature, reason)
        }
        Some(Err(error)) => error,
        _ if special => no_scores(q),
        _ => no_columns(q),
    }
}

/// Checks that the device runs a kernel which no request names.
///
/// # Errors
/// Returns [`Error::Unsupported`]. If the kernels of an eight-bit cache need another device, the remedy is a
/// cache of the queries' dtype.
pub(super) fn runs(q: &Query<'_>, e: &AttnInfo) -> Result<(), Error> {
    let (p, runs) = (q.problem, q.on.runs(&e.contract));
    if p.cache.is_none() || p.kv_dtype == p.dtype || e.contract.target.runs_on(q.on.arch()) {
        return runs;
    }
    let ((major, minor), mask) = (q.on.compute_capability, q.kind.mask.name());
    let (of, dtype) = (p.kv_dtype.name(), p.dtype.name());
    let reason = format_args!(
        "on compute capability {major}.{minor}, a cache of {of} has no kernel for {mask} masks; store the \
         cache in {dtype}"
    );
    Err(Error::unsupported(format_args!("{p} on {}", q.on.name), reason))
}

/// Returns the error for numbers of columns that no kernel without parameters takes.
fn no_columns(q: &Query<'_>) -> Error {
    let (p, kind) = (q.problem, &q.kind);
    let plain = || {
        let all = q.class(kind.class()).filter(|e| !e.has_maps() && !q.is_special(e));
        of_front(q, all)
    };
    if !kind.has_equal_rows() && (kind.class() != Class::Paged || !plain().any(|e| e.has_columns_for(kind))) {
        return apart(p, plain());
    }
    let feature = format_args!("{p} on a cache of {}", kind.kv_dtype.name());
    let reason = match kind.kv_dtype {
        DType::E4m3 => {
            "e4m3 KV caches support head_dim up to 256; above, at most 64 rows (queries x query heads per \
             key head), equal query counts per sequence, and no ALiBi slopes"
        }
        DType::Int8 => WIDE_INT8,
        _ => "ALiBi slopes on a KV cache support head_dim up to 256",
    };
    Error::unsupported(feature, reason)
}

/// Returns the error for K and V of different numbers of columns, or of different strides.
fn apart<'a>(p: &Problem, kernels: impl Iterator<Item = &'a AttnInfo>) -> Error {
    let [k, v] = p.columns();
    let what = match k == v {
        true => "k and v have different strides in the KV cache",
        false => "k and v have different numbers of columns",
    };
    let reason = match kernels.filter(|e| e.has_own_values()).map(AttnInfo::columns).max() {
        Some([most_k, most]) => {
            let remedy = match k > most_k as usize {
                true if k == v => "give v the strides of k".to_owned(),
                true => format!("give v and o {k} columns, and fill them with zeros"),
                false => format!(
                    "split v and o into parts of at most {most} columns, and make one request for each part"
                ),
            };
            format!("{what}: kernels then take at most {most_k} columns of k and {most} of v; {remedy}")
        }
        None => format!(
            "{what}, which no kernel for this dtype of the KV cache takes; use a cache of the queries' \
             dtype, or copy v into a cache of k's shape and strides"
        ),
    };
    Error::unsupported(p.named_columns(), reason)
}

/// Checks that a named kernel reads the KV cache's dtype for queries of the problem's dtype.
///
/// # Errors
/// Returns [`Error::Invalid`], which names the dtypes.
pub(crate) fn reads_cache(e: &AttnInfo, p: &Problem) -> Result<(), Error> {
    if p.cache.is_none() || e.has_dtypes_of(&p.kind()) {
        return Ok(());
    }
    let expected = format_args!(
        "it is a kernel for {} on caches of {}, and the request has {} on a cache of {}; name another kernel \
         (`ferroflash kernels`), or leave config out",
        e.dtype.name(),
        e.kv_dtype.name(),
        p.dtype.name(),
        p.kv_dtype.name()
    );
    Err(Error::invalid("config", e.contract.symbol, expected))
}

/// The masks and scores of a kernel of windows.
const ANY_WINDOW: &str = "full and causal masks, windows and softcap";

/// Returns a kernel's masks and scores in words.
fn in_words(e: &AttnInfo) -> String {
    let masks = match e.mask {
        MaskKind::Full => "full masks",
        MaskKind::Causal => "causal masks",
        MaskKind::Local => ANY_WINDOW,
        MaskKind::Prefix => "prefix masks",
        MaskKind::Chunked => "chunked masks",
        MaskKind::Bits => "masks of bits",
        MaskKind::Own => "a caller's masks",
    };
    let bias = e.scores.bias.map(|dtype| format!("a bias of {}", dtype.name()));
    let own = |is_there: bool, what: &str| is_there.then(|| what.to_owned());
    let scores = [own(e.scores.sink, "sinks"), own(e.scores.alibi, "ALiBi slopes"), bias];
    let scores: Vec<_> = scores.into_iter().flatten().collect();
    if scores.is_empty() { masks.to_owned() } else { format!("{masks} with {}", scores.join(" and ")) }
}

/// Returns what does not go with the bias of a problem, and the remedy. `takes` says whether kernels for the
/// problem's tensors add a bias of this dtype under this mask.
pub(crate) fn beside_bias(p: &Problem, takes: impl Fn(MaskKind, DType) -> bool) -> Option<[String; 2]> {
    let (bias, kind, dtype) = (p.bias?, p.mask_kind(), p.dtype.name());
    if p.softcap.is_some() {
        return Some(["softcap".into(), "leave the softcap out".into()]);
    }
    if p.alibi {
        return Some(["ALiBi slopes".into(), "add the slopes to the bias".into()]);
    }
    let masks = [MaskKind::Full, MaskKind::Causal].into_iter().filter(|mask| takes(*mask, p.dtype));
    let masks: Vec<_> = masks.map(MaskKind::name).collect();
    let remedy = match masks.join(" or ") {
        _ if takes(kind, bias) => return None,
        _ if takes(kind, p.dtype) => format!("convert the bias to {dtype}"),
        masks if masks.is_empty() => return None,
        masks => {
            format!("use a {masks} mask, and a bias of {dtype} that is -inf where a query does not see a key")
        }
    };
    Some([format!("mask {} on {} of {dtype}", p.mask, front(p)), remedy])
}

/// Returns the error for a combination of mask and scores that no kernel solves.
fn no_scores(q: &Query<'_>) -> Error {
    let p = q.problem;
    if let Some(variant) = p.variant {
        let has = |e: &AttnInfo| {
            let Contract { symbol, .. } = e.contract;
            format!("{symbol} ({}, {}, head_dim {})", e.family(), e.dtype.name(), e.head_dim)
        };
        let kernels: Vec<_> = variant.kernels().map(has).collect();
        let reason = format_args!(
            "variant {} has no kernel for {}, {} and this head_dim; it has {}; compile one more (`entry!`)",
            variant.name(),
            p.dtype.name(),
            front(p),
            kernels.join(", ")
        );
        return Error::unsupported(p, reason);
    }
    let of_front = || of_front(q, q.class(q.kind.class()));
    let largest = of_front().filter(|e| e.computes(&q.kind)).map(|e| e.head_dim).max();
    if !q.kind.has_equal_rows() {
        let reason = "kernels with this mask and these scores take k and v of equal numbers of columns, and \
                      equal strides in a KV cache";
        return Error::unsupported(p, reason);
    }
    if let Some(largest) = largest {
        let reason = format_args!("kernels with this mask and these scores take head dims up to {largest}");
        return Error::unsupported(p, reason);
    }
    let takes = |mask, bias| of_front().any(|e| e.mask == mask && e.scores.bias == Some(bias));
    if let (Some(bias), Some([what, remedy])) = (p.bias, beside_bias(p, takes)) {
        return Error::unsupported(format_args!("a bias of {} with {what}", bias.name()), remedy);
    }
    let mut kinds: Vec<_> = of_front().map(in_words).collect();
    kinds.sort_unstable();
    kinds.dedup();
    if kinds.iter().any(|kind| kind == ANY_WINDOW) {
        kinds.retain(|kind| !["full masks", "causal masks"].contains(&kind.as_str()));
    }
    let dtype = p.dtype.name();
    let keys = match p.cache {
        Some(_) => format!("on a KV cache of {}", p.kv_dtype.name()),
        None => "in tensors".to_owned(),
    };
    let store = match p.cache {
        // No kernel on a KV cache takes a bias.
        Some(_) if p.kv_dtype != p.dtype && p.bias.is_none() => {
            format!("store the cache in {dtype}, or ")
        }
        _ => String::new(),
    };
    let (fault, remedy) = match p.bias {
        None => ("takes this mask with these scores", ""),
        Some(_) => ("adds a bias to the scores under this mask", "remove the bias, or "),
    };
    let reason = format_args!(
        "no kernel for {dtype} and keys {keys} {fault}; {store}{remedy}use what has kernels: {}",
        kinds.join("; ")
    );
    let bias = p.bias.map_or(String::new(), |dtype| format!(" and a bias of {}", dtype.name()));
    Error::unsupported(format_args!("mask {}{bias} ({p})", p.mask), reason)
}
