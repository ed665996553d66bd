//! The one table: the lines of every family of kernels.
use crate::*;

/// Expands `$emit!` with the lines of each family: `symbol [E = Type, ..]: Configuration;`, where the
/// configuration speaks of the names in brackets.
#[macro_export]
macro_rules! for_each_kernel {
    ($emit:ident) => {
        $crate::for_each_forward!($emit);
        $crate::for_each_lineage!($emit);
        $crate::for_each_combine!($emit);
        $crate::for_each_append!($emit);
        $crate::for_each_decode!($emit);
        $crate::for_each_decode_combine!($emit);
        $crate::for_each_merge!($emit);
        $crate::for_each_packed!($emit);
        $crate::for_each_paged!($emit);
        $crate::for_each_hopper!($emit);
        $crate::for_each_hopper_packed!($emit);
        $crate::for_each_hopper_paged!($emit);
    };
}

macro_rules! kernels {
    ($($family:ident),*) => {
        const COUNT: usize = 0 $(+ $family.len())*;
        /// Everything that is compiled, family after family.
        pub const KERNELS: &[Contract; COUNT] = &{
            let (mut all, mut count) = ([Contract::new("", 1); COUNT], 0);
            $(
                let mut line = 0;
                while line < $family.len() {
                    all[count] = $family[line].contract;
                    (count, line) = (count + 1, line + 1);
                }
            )*
            all
        };
    };
}
kernels!(
    ENTRIES,
    PACKED,
    COMBINES,
    APPENDS,
    DECODES,
    DECODE_COMBINES,
    MERGES,
    PAGED,
    HOPPERS,
    HOPPERS_PACKED,
    HOPPERS_PAGED
);

/// [`KERNELS`], one by one.
pub fn kernels() -> impl Iterator<Item = Contract> {
    KERNELS.iter().copied()
}

/// Whether a kernel is of the lineage alone, which libraries do not carry.
pub fn is_lineage(symbol: &str) -> bool {
    ENTRIES[PLANNED.len()..].iter().any(|entry| entry.contract.symbol == symbol)
}

/// What is left out together, and compressed together: the lineage's, or the first word of a symbol.
pub fn family(symbol: &str) -> &str {
    let word = || symbol.split_once('_').map_or(symbol, |(family, _)| family);
    if is_lineage(symbol) { "lineage" } else { word() }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_symbol_stands_twice() {
        let distinct: HashSet<_> = kernels().map(|kernel| kernel.symbol).collect();
        assert_eq!(distinct.len(), KERNELS.len());
    }
}
