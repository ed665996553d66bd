//! A line of the forward family's table.
use crate::{Contract, DType, Forward, Grid, Kernel, MaskKind, Path, Schedule};

/// A kernel with a symbol in the PTX: one line of the table.
pub trait Entry: Kernel {
    /// Its line in the table.
    const INFO: EntryInfo;
}

/// A line of the table as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryInfo {
    /// How it is compiled.
    pub contract: Contract,
    /// Element type of Q, K, V and O.
    pub dtype: DType,
    /// Largest head dim, in elements. Smaller ones (multiples of 8) run with their missing columns zero.
    pub head_dim: u32,
    /// Which keys a query sees.
    pub mask: MaskKind,
    /// Order of work in the main loop.
    pub schedule: Schedule,
    /// What multiplies tiles.
    pub path: Path,
    /// Which blocks a launch has.
    pub grid: Grid,
    /// Queries of a block.
    pub tile_m: u32,
    /// Keys of a stage.
    pub tile_n: u32,
    /// Key/value stages in shared memory.
    pub stages: u32,
}

impl EntryInfo {
    /// The kernel of configuration `K`, compiled as `contract` says.
    pub const fn of<K: Forward>(contract: Contract) -> Self {
        EntryInfo {
            contract,
            dtype: K::DTYPE,
            head_dim: K::HEAD_DIM,
            mask: K::MASK,
            schedule: K::SCHEDULE,
            path: K::PATH,
            grid: K::GRID,
            tile_m: K::TILE_M,
            tile_n: K::TILE_N,
            stages: K::STAGES,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use crate::*;
    use std::{collections::HashSet, format};

    #[test]
    fn symbols_are_distinct_and_say_what_they_are() {
        let distinct: HashSet<_> = ENTRIES.iter().map(|e| e.contract.symbol).collect();
        assert_eq!(distinct.len(), ENTRIES.len());
        for e in ENTRIES {
            let name =
                format!("fwd_{}_d{}_{}_{}x{}", e.dtype.name(), e.head_dim, e.mask.name(), e.tile_m, e.tile_n);
            assert!(e.contract.symbol.starts_with(&name), "{} should start with {name}", e.contract.symbol);
        }
    }

    #[test]
    fn every_head_dim_mask_and_type_has_an_entry_that_an_l4_can_hold() {
        for dtype in [DType::F16, DType::Bf16] {
            for head_dim in [32, 64, 96, 128, 192, 256, 512] {
                for mask in [MaskKind::Full, MaskKind::Causal, MaskKind::Local] {
                    let fits = ENTRIES.iter().any(|e| {
                        (e.dtype, e.head_dim, e.mask) == (dtype, head_dim, mask)
                            && e.contract.smem_bytes <= 99 * 1024
                    });
                    assert!(fits, "{dtype:?} {head_dim} {mask:?}");
                }
            }
        }
    }
}
