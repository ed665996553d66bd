//! The Hopper family where blocks share a tile's keys, and the kernel that merges what they leave.
use super::split::Split;
use super::{Launches, forward, hopper};
use crate::plan::Tensors;
use crate::prepared::bytes_of;
use crate::{Boxes, Capabilities, Error, Problem};
use spec::{AttnInfo, Lse, Partials, SplitParams, Tensor, TensorMap};

/// The launches of a Hopper kernel that splits and of the one that merges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Launch {
    /// The kernel that splits, as it would be launched for whole tiles, but for its blocks.
    pub hopper: hopper::Launch,
    split: Split,
    partials: Partials,
    /// The merge's output.
    o: Tensor,
    lse: Lse,
}

impl Launch {
    /// `entry` must be a Hopper one that splits. `instead` solves the same problem for any tensors.
    ///
    /// # Errors
    /// Those of [`hopper::Launch::new`] and [`Split::of`]; [`Error::Unsupported`] where no kernel merges what
    /// `entry` leaves.
    pub fn new(
        entry: &AttnInfo,
        instead: Option<&AttnInfo>,
        p: &Problem,
        capabilities: &Capabilities,
        tensors: &Tensors,
    ) -> Result<Self, Error> {
        let split = Split::of(p, entry, capabilities)?
            .ok_or_else(|| Error::unsupported(entry.contract.symbol, "no kernel merges its slices"))?;
        let mut hopper = hopper::Launch::new(entry, instead, p, capabilities, tensors)?;
        let order = hopper.order();
        hopper.grid = [(order.tiles * split.slices()).min(order.resident), 1, 1];
        Ok(Self::of(hopper, split, tensors))
    }

    fn of(hopper: hopper::Launch, split: Split, tensors: &Tensors) -> Self {
        let [.., o] = &tensors.views;
        let (o, lse) = (forward::tensor(o), forward::lse(tensors.lse.as_ref()));
        Launch { hopper, split, partials: split.partials(tensors), o, lse }
    }

    /// The same for other tensors of the same problem: by the portable kernel where the copy engine does not
    /// take them.
    ///
    /// # Errors
    /// Those of [`hopper::Launch::bind`].
    pub fn bind(&self, p: &Problem, tensors: &Tensors) -> Result<Launches, Error> {
        Ok(match self.hopper.bind(p, tensors)? {
            Launches::Hopper(hopper) => Launches::HopperSplit(Self::of(hopper, self.split, tensors)),
            other => other,
        })
    }

    /// Bytes of workspace that the slices need.
    pub fn workspace_bytes(&self) -> u64 {
        self.split.workspace()
    }

    /// Hands over both kernels' places, blocks and bytes of parameters, once `maps` has encoded the first
    /// one's tensors.
    ///
    /// # Errors
    /// Those of either.
    pub fn each(
        &self,
        maps: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let params = SplitParams { forward: self.hopper.params(maps)?, partials: self.partials };
        let heads = self.hopper.order().heads;
        let (merge, grid) = self.split.merge(self.partials, self.o, self.lse, heads);
        // SAFETY: no family's parameters have padding (`spec` tests it of the first, `prepared.rs` of the
        // other).
        let (first, second) = unsafe { (bytes_of(&params), bytes_of(&merge)) };
        launch(self.hopper.kernel, self.hopper.grid, first)?;
        launch(self.split.combine(), grid, second)
    }
}
