//! The place of a launch's kernel: in the table, or in a variant.
use crate::variant::{AnyVariant, Compiled};
use crate::{AttnInfo, Contract, KERNELS};
use std::collections::HashMap;
use std::sync::LazyLock;

/// The index of each kernel in [`KERNELS`], by symbol. A plan looks several kernels up, so its time must not
/// grow with the table.
static INDICES: LazyLock<HashMap<&str, u16>> =
    LazyLock::new(|| KERNELS.iter().zip(0..).map(|(kernel, index)| (kernel.symbol, index)).collect());

/// The place of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// The kernel of the table with this index in [`KERNELS`].
    Table(u16),
    /// A variant's kernel.
    Variant(&'static Compiled),
}

impl Place {
    /// Returns the place of a kernel of the table.
    pub fn of(contract: &Contract) -> Self {
        Place::Table(INDICES.get(contract.symbol).copied().unwrap_or_default())
    }

    /// Returns the place of a kernel of the table or, if the problem has a variant, of the variant.
    pub fn of_either(kernel: &'static AttnInfo, variant: Option<AnyVariant>) -> Self {
        let own = variant.and_then(|variant| variant.compiled().find(|own| std::ptr::eq(own.info(), kernel)));
        own.map_or_else(|| Place::of(&kernel.contract), Place::Variant)
    }

    /// Returns the kernel's launch contract.
    pub const fn contract(self) -> &'static Contract {
        match self {
            Place::Table(index) => &KERNELS[index as usize],
            Place::Variant(kernel) => &kernel.info().contract,
        }
    }
}
