//! The place of a launch's kernel: in the table, or in a variant.
use crate::variant::Compiled;
use crate::{Contract, KERNELS};

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
        let found = KERNELS.iter().position(|kernel| kernel.symbol == contract.symbol);
        Place::Table(found.unwrap_or_default() as u16)
    }

    /// Returns the kernel's launch contract.
    pub const fn contract(self) -> &'static Contract {
        match self {
            Place::Table(index) => &KERNELS[index as usize],
            Place::Variant(kernel) => &kernel.info().contract,
        }
    }
}
