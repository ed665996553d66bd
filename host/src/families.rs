//! What plans launch: kernels of a family, with the family's own parameters. A [`Forward`](crate::Forward)
//! has an arm of [`Launches`] for each family that may solve it; what other requests launch is their own.
use crate::plan::Tensors;
use crate::prepared::bytes_of;
use crate::table::Choice;
use crate::{Boxes, Capabilities, Error, Problem};
use spec::{Contract, FwdParams, Isa, KERNELS, Queries, TensorMap};

pub(crate) mod append;
pub(crate) mod cache;
pub(crate) mod decode;
pub(crate) mod forward;
pub(crate) mod hopper;
pub(crate) mod hopper_packed;
pub(crate) mod hopper_paged;
pub(crate) mod hopper_split;
pub(crate) mod merge;
pub(crate) mod on_cache;
pub(crate) mod packed;
pub(crate) mod paged;
pub(crate) mod split;

/// What a plan launches.
pub trait Kernels {
    /// Hands each kernel's place in [`KERNELS`], its blocks and the bytes of its parameters to `launch`, in
    /// the order of their launches. What its parameters hold of tensor maps `maps` encodes.
    fn each(
        &self,
        maps: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
        launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error>;

    /// The place of a kernel that only launches with other tensors take, if there is one.
    fn other(&self) -> Option<usize> {
        None
    }
}

/// One kernel: its place in [`KERNELS`], its blocks, and what it is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct One<P> {
    pub kernel: usize,
    pub grid: [u32; 3],
    pub params: P,
}

impl<P> One<P> {
    pub fn contract(&self) -> &'static Contract {
        &KERNELS[self.kernel]
    }
}

impl<P: Copy> Kernels for One<P> {
    fn each(
        &self,
        _: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // SAFETY: no family's parameters have padding (`prepared.rs` tests it).
        launch(self.kernel, self.grid, unsafe { bytes_of(&self.params) })
    }
}

/// The launches of a forward's plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Launches {
    /// One kernel: a block for each tile of queries, or as many as the device holds.
    Forward(forward::Launch),
    /// Two: blocks share a tile's keys, and a second kernel merges what they leave.
    Split(split::Launch),
    /// One kernel, whose blocks find their sequences by integers on the device.
    Packed(packed::Launch),
    /// One kernel, with as many blocks as the device holds, and tensors by their maps.
    Hopper(hopper::Launch),
    /// The same, whose blocks find their sequences by integers on the device.
    HopperPacked(hopper_packed::Launch),
    /// Two: the same with slices of tiles' keys, and a second kernel merges what they leave.
    HopperSplit(hopper_split::Launch),
}
use Launches::{Forward, Hopper, HopperPacked, HopperSplit, Packed, Split};

impl Launches {
    /// Those of the kernel that was chosen.
    pub fn of(
        problem: &Problem,
        choice: &Choice,
        capabilities: &Capabilities,
        tensors: &Tensors,
    ) -> Result<Self, Error> {
        let entry = choice.entry;
        let forward = || {
            let order = forward::order(problem, entry, capabilities)?;
            Ok(forward::Launch::new(entry, problem, tensors, order))
        };
        match (entry.isa, entry.queries, entry.splits) {
            (Isa::Sm80, Queries::Varlen, _) => {
                packed::Launch::new(entry, problem, capabilities, tensors).map(Packed)
            }
            (Isa::Sm80, _, true) => {
                split::Launch::new(entry, problem, capabilities, &forward()?, tensors).map(Split)
            }
            (Isa::Sm80, _, false) => forward().map(Forward),
            (Isa::Sm90a, Queries::Batched | Queries::Any, false) => {
                hopper::Launch::new(entry, choice.instead, problem, capabilities, tensors).map(Hopper)
            }
            (Isa::Sm90a, Queries::Varlen, _) => {
                hopper_packed::Launch::new(entry, choice.instead, problem, capabilities, tensors)
                    .map(HopperPacked)
            }
            (Isa::Sm90a, _, true) => {
                hopper_split::Launch::new(entry, choice.instead, problem, capabilities, tensors)
                    .map(HopperSplit)
            }
        }
    }

    /// Checks that a launch of the kernel that was chosen is not too large.
    pub fn fits(problem: &Problem, choice: &Choice, capabilities: &Capabilities) -> Result<(), Error> {
        if choice.entry.is_varlen() {
            packed::order(problem, choice.entry.tile_m, capabilities).map(|_| ())
        } else {
            forward::order(problem, choice.entry, capabilities).map(|_| ())
        }
    }

    /// The same for other tensors of the same problem.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where a kernel that was asked for by name does not take them.
    pub fn bind(&self, problem: &Problem, tensors: &Tensors) -> Result<Self, Error> {
        Ok(match self {
            Forward(launch) => Forward(launch.bind(problem, tensors)),
            Split(launch) => Split(launch.bind(problem, tensors)),
            Packed(launch) => Packed(launch.bind(problem, tensors)),
            Hopper(launch) => launch.bind(problem, tensors)?,
            HopperPacked(launch) => launch.bind(problem, tensors)?,
            HopperSplit(launch) => launch.bind(problem, tensors)?,
        })
    }

    /// The first kernel's contract.
    pub const fn contract(&self) -> &'static Contract {
        &KERNELS[match self {
            Forward(launch) => launch.kernel,
            Split(launch) => launch.kernel,
            Packed(launch) => launch.kernel,
            Hopper(launch) => launch.kernel,
            HopperPacked(launch) => launch.kernel,
            HopperSplit(launch) => launch.hopper.kernel,
        }]
    }

    /// Blocks of the first kernel.
    pub const fn grid(&self) -> [u32; 3] {
        match self {
            Forward(launch) => launch.grid,
            Split(launch) => launch.grid,
            Packed(launch) => launch.grid,
            Hopper(launch) => launch.grid,
            HopperPacked(launch) => launch.grid,
            HopperSplit(launch) => launch.hopper.grid,
        }
    }

    /// Bytes of workspace that they use.
    pub fn workspace_bytes(&self) -> u64 {
        match self {
            Forward(_) | Packed(_) | Hopper(_) | HopperPacked(_) => 0,
            Split(launch) => launch.workspace_bytes(),
            HopperSplit(launch) => launch.workspace_bytes(),
        }
    }

    /// What the kernel that computes attention is told.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where that takes a driver.
    pub fn forward(&self) -> Result<&FwdParams, Error> {
        match self {
            Forward(launch) => Ok(&launch.params),
            Split(launch) => Ok(&launch.params.forward),
            Packed(launch) => Ok(&launch.params.forward),
            Hopper(_) | HopperPacked(_) | HopperSplit(_) => hopper::no_params(self.contract()),
        }
    }
}

impl Kernels for Launches {
    fn each(
        &self,
        maps: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self {
            Forward(one) => one.each(maps, launch),
            Packed(one) => one.each(maps, launch),
            Hopper(one) => one.each(maps, launch),
            HopperPacked(one) => one.each(maps, launch),
            HopperSplit(two) => two.each(maps, launch),
            Split(two) => {
                let (merge, grid) = two.merge();
                // SAFETY: no family's parameters have padding (`prepared.rs` tests it).
                let (first, second) = unsafe { (bytes_of(&two.params), bytes_of(&merge)) };
                launch(two.kernel, two.grid, first)?;
                launch(two.combine, grid, second)
            }
        }
    }

    fn other(&self) -> Option<usize> {
        match self {
            Hopper(one) => one.other(),
            HopperPacked(one) => one.other(),
            HopperSplit(two) => two.hopper.other(),
            Forward(_) | Split(_) | Packed(_) => None,
        }
    }
}

/// The place in [`KERNELS`] of a kernel of the table.
fn place(contract: &Contract) -> usize {
    KERNELS.iter().position(|kernel| kernel.symbol == contract.symbol).unwrap_or_default()
}
