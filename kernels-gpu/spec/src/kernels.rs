//! The lists of the table together, as one list, and kernels by what they do.
use crate::*;

/// Joins lists: the contracts of their lines.
macro_rules! join {
    ($($list:ident),*) => { &{
        let (mut all, mut count) = ([Contract::new("", 1); 0 $(+ $list.len())*], 0);
        $(
            let mut at = 0;
            while at < $list.len() {
                all[count] = $list[at].contract;
                (count, at) = (count + 1, at + 1);
            }
        )*
        all
    } };
}

/// Every compiled kernel, in the order of the table's lists.
pub const KERNELS: &[Contract;
     ATTENTION.len()
         + LINEAGE.len()
         + STATISTICS.len()
         + COMBINES.len()
         + QUANTISES.len()
         + APPENDS.len()
         + MERGES.len()
         + EXTRAS.len()
         + DELTAS.len()
         + GRADIENTS.len()
         + CONVERT_DQS.len()
         + DSINKS.len()
         + SUM_HEADS.len()] = join!(
    ATTENTION,
    LINEAGE,
    STATISTICS,
    COMBINES,
    QUANTISES,
    APPENDS,
    MERGES,
    EXTRAS,
    DELTAS,
    GRADIENTS,
    CONVERT_DQS,
    DSINKS,
    SUM_HEADS
);

/// An iterator over [`KERNELS`].
pub fn kernels() -> impl Iterator<Item = Contract> {
    KERNELS.iter().copied()
}

/// Every compiled attention kernel, and the lineage if this build includes it.
pub fn attention() -> impl Iterator<Item = &'static AttnInfo> + Clone {
    ATTENTION.iter().chain(LINEAGE)
}

/// The kernels of a class with these instructions whose mask and scores have no parameters.
pub fn plain(isa: Isa, class: Class) -> impl Iterator<Item = &'static AttnInfo> + Clone {
    attention().filter(move |e| (e.isa, e.class()) == (isa, class) && e.is_plain())
}

const LINES: usize = ATTENTION.len();

/// The index of a class and a dtype of queries in [`SORTED`].
const fn group(class: Class, dtype: DType) -> usize {
    class as usize * DTYPES + dtype as usize
}

/// The number of dtypes, and of groups.
const DTYPES: usize = DType::F32 as usize + 1;
const GROUPS: usize = (Class::Many as usize + 1) * DTYPES;

/// The places in [`ATTENTION`], sorted by class and dtype, and the end of each group.
const SORTED: &([u16; LINES], [u16; GROUPS + 1]) = &{
    let (mut places, mut ends, mut count, mut of) = ([0; LINES], [0; GROUPS + 1], 0, 0);
    while of < GROUPS {
        let mut at = 0;
        while at < LINES {
            if group(ATTENTION[at].class(), ATTENTION[at].dtype) == of {
                places[count] = at as u16;
                count += 1;
            }
            at += 1;
        }
        of += 1;
        ends[of] = count as u16;
    }
    (places, ends)
};

/// The kernels of a class for a dtype of queries, in the table's order. A plan looks only at these, so that
/// its time does not grow with the table.
pub fn of_class(class: Class, dtype: DType) -> impl Iterator<Item = &'static AttnInfo> + Clone {
    let ((places, ends), group) = (SORTED, group(class, dtype));
    places[ends[group].into()..ends[group + 1].into()].iter().map(|at| &ATTENTION[usize::from(*at)])
}

/// The kernel that combines the splits of an attention kernel, or `None` if the attention kernel never
/// splits.
pub fn combine_of(entry: &AttnInfo) -> Option<Contract> {
    COMBINES.iter().find(|combine| combine.finishes(entry)).map(|combine| combine.contract)
}

/// The kernel that quantises tensors for an attention kernel, or `None` if it reads them as they are.
pub fn quantise_of(entry: &AttnInfo) -> Option<Contract> {
    QUANTISES.iter().find(|quantise| quantise.feeds(entry)).map(|quantise| quantise.contract)
}

/// The kernel that lays the values of a KV cache for an attention kernel, or `None` if it reads them as they
/// are.
pub fn lay_of(entry: &AttnInfo) -> Option<Contract> {
    let lay = match (entry.isa, entry.head_dim) {
        (Isa::Sm80, ..=64) => <LayInt8Pages<4, 4> as Entry>::CONTRACT,
        (Isa::Sm80, _) => <LayInt8Pages<4, 8> as Entry>::CONTRACT,
        (Isa::Sm90a, ..=64) => <LayFp8Pages<8, 4> as Entry>::CONTRACT,
        (Isa::Sm90a, ..=128) => <LayFp8Pages<8, 8> as Entry>::CONTRACT,
        (Isa::Sm90a, _) => <LayFp8Pages<4, 16> as Entry>::CONTRACT,
    };
    (entry.keys == Keys::OperandCache).then_some(lay)
}

/// The head dims of kernels, without repetition, in the kernels' order.
pub fn head_dims<'a>(kernels: impl Iterator<Item = &'a AttnInfo> + Clone) -> impl Iterator<Item = u32> {
    let all = kernels.clone();
    let first = move |at: usize, e: &AttnInfo| all.clone().take(at).all(|o| o.head_dim != e.head_dim);
    kernels.enumerate().filter(move |(at, e)| first(*at, e)).map(|(_, e)| e.head_dim)
}

/// Whether only the lineage uses a kernel; libraries do not contain such kernels.
pub fn is_lineage(symbol: &str) -> bool {
    LINEAGE.iter().any(|entry| entry.contract.symbol == symbol)
}

/// The feature without which a library does not contain a kernel, or `None` if every library contains it.
pub fn feature_of(symbol: &str) -> Option<&'static str> {
    let beside = DELTAS.iter().map(|e| e.contract).chain(CONVERT_DQS.iter().map(|e| e.contract));
    let beside = beside.chain(DSINKS.iter().map(|e| e.contract)).chain(SUM_HEADS.iter().map(|e| e.contract));
    let mut gradients = GRADIENTS.iter().map(|e| e.contract).chain(beside);
    match is_lineage(symbol) {
        true => Some("lineage"),
        false => gradients.any(|kernel| kernel.symbol == symbol).then_some("training"),
    }
}

/// The group to which a build assigns a kernel, to omit or compress the group's kernels together: the
/// lineage, or the first word of a symbol.
pub fn family(symbol: &str) -> &str {
    let word = || symbol.split_once('_').map_or(symbol, |(family, _)| family);
    if is_lineage(symbol) { "lineage" } else { word() }
}

/// For a kernel `entry` of mixed batches: the other kernels of its launches, with and without sinks. Each
/// launch has a decode kernel and a prefill kernel.
pub fn beside(entry: &AttnInfo) -> impl Iterator<Item = Contract> + use<'_> {
    let other = match entry.class() {
        Class::Few => Some(Class::Many),
        Class::Many => Some(Class::Few),
        _ => None,
    };
    let kind = |e: &AttnInfo| (e.kv_dtype, e.o_dtype, e.head_dim, e.mask, e.contract.target);
    let others = other.into_iter().flat_map(|other| of_class(other, entry.dtype));
    others.filter(move |other| kind(other) == kind(entry)).map(|other| other.contract)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::info::panel;
    use std::collections::HashSet;
    use std::format;

    #[test]
    fn no_symbol_stands_twice() {
        let distinct: HashSet<_> = kernels().map(|kernel| kernel.symbol).collect();
        assert_eq!(distinct.len(), KERNELS.len());
    }

    #[test]
    fn symbols_say_what_they_are() {
        for e in attention() {
            let family = match e.family() {
                "forward" | "packed" | "split" => "fwd",
                "hopper packed" => "hopper_packed",
                "hopper paged" => "hopper_paged",
                "hopper mla" => "hopper_mla",
                "sparse mla" => "sparse_mla",
                "hopper sparse mla" => "hopper_sparse_mla",
                "mixed few" => "mixed_few",
                "mixed many" => "mixed_many",
                "quantised" | "quantised packed" => "int8_fp8",
                "quantised keys" | "quantised keys packed" => "int8_f16",
                "quantised paged" => "int8_fp8_paged",
                "hopper quantised" => "fp8",
                "hopper quantised packed" => "fp8_packed",
                "hopper quantised paged" => "fp8_paged",
                family => family,
            };
            let cache = if e.kv_dtype == e.dtype { "".into() } else { format!("_{}", e.kv_dtype.name()) };
            let (mask, scores) = (e.mask.name(), e.scores.name(e.dtype));
            let values = match e.columns() {
                [keys, values] if keys != values && !e.is_latent() => format!("x{values}"),
                _ => "".into(),
            };
            let of = format!("{family}_{}{cache}_d{}{values}_{mask}{scores}", e.dtype.name(), e.head_dim);
            let name = match e.keys {
                Keys::Cache(pages) if e.splits && e.schedule == Schedule::Transposed => {
                    format!("{of}_{}_{}", e.tile_m, pages.name())
                }
                _ => format!("{of}_{}x{}", e.tile_m, e.tile_n),
            };
            let symbol = e.contract.symbol;
            assert!(symbol.starts_with(&name), "{symbol} should start with {name}");
            let splits = e.splits && !e.decodes();
            assert_eq!(symbol.ends_with("_split"), splits, "{symbol}");
            let varlen = e.is_varlen() && e.isa == Isa::Sm80;
            assert_eq!(symbol.ends_with("_packed"), varlen, "{symbol}");
        }
    }

    #[test]
    fn hopper_kernels_fit_a_hopper() {
        for e in attention().filter(|e| e.has_maps()) {
            let Contract { symbol, target, param_align, smem_bytes, .. } = e.contract;
            assert_eq!((target, param_align), (Target::Exactly(90), TensorMap::ALIGN), "{symbol}");
            assert!(smem_bytes <= 227 << 10, "{symbol}: {smem_bytes}");
            // The tile of head dim 80 has 96 columns.
            let columns = if e.head_dim == 80 { 96 } else { e.head_dim };
            assert!(columns.is_multiple_of(panel(columns)) && e.tile_n <= 256, "{symbol}");
        }
        assert!(attention().all(|e| e.has_maps() == (e.contract.param_align == TensorMap::ALIGN)));
    }

    #[test]
    fn every_head_dim_mask_and_type_has_an_entry_that_an_l4_can_hold() {
        for dtype in [DType::F16, DType::Bf16] {
            for head_dim in head_dims(plain(Isa::Sm80, Class::Dense)) {
                for mask in [MaskKind::Full, MaskKind::Causal, MaskKind::Local] {
                    let fits = plain(Isa::Sm80, Class::Dense).any(|e| {
                        (e.dtype, e.head_dim, e.mask) == (dtype, head_dim, mask)
                            && e.contract.smem_bytes <= 99 * 1024
                    });
                    assert!(fits, "{dtype:?} {head_dim} {mask:?}");
                }
            }
        }
    }

    #[test]
    fn combine_kernels_are_there_for_what_splits() {
        for entry in attention() {
            assert_eq!(combine_of(entry).is_some(), entry.splits, "{}", entry.contract.symbol);
        }
    }
}
