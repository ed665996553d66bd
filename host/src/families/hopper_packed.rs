//! The Hopper family for packed sequences: as [`super::hopper`], through maps that end where a sequence does,
//! wherever that is by the device's integers. Maps follow from tensors alone, so that a graph replayed with
//! other lengths has them.
use super::hopper::{boxes, boxes_again, rounds, takes};
use super::{Launches, forward, packed, place};
use crate::plan::Tensors;
use crate::prepared::bytes_of;
use crate::{Alignment, Boxes, Capabilities, Error, MapKind, Problem, TensorView, validate};
use spec::{
    AttnInfo, Contract, HopperParams, Integers, KERNELS, Lse, MaskKind, RaggedMap, Sequences, TensorMap,
    TileOrder, TileRounds, VarlenParams, Window,
};

/// The launch of a Hopper kernel for packed sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Launch {
    /// Its place in [`KERNELS`].
    pub kernel: usize,
    pub grid: [u32; 3],
    /// Q, K, V and O.
    boxes: [Boxes; 4],
    told: Told,
    /// What takes tensors that the copy engine does not; none where the kernel was asked for by name, or
    /// where a portable one's smaller tiles are too many.
    instead: Option<Instead>,
}

/// A portable kernel for the same problem.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Instead {
    kernel: usize,
    sequences: Sequences,
    order: TileOrder,
}

/// What the kernel is told beside its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Told {
    lse: Lse,
    rounds: TileRounds,
    window: Window,
    scale_log2: f32,
    softcap: f32,
    q_len: u32,
    k_len: u32,
    integers: [Integers; 3],
    sequences: Sequences,
    bottom_right: u32,
}

/// Checks that the copy engine takes packed tensors that have been checked.
///
/// # Errors
/// What it does not take.
pub(crate) fn takes_packed(tensors: &Tensors) -> Result<(), &'static str> {
    takes(tensors)?;
    tensors.views.iter().try_for_each(takes_rows)
}

/// The same of the rows of one, as maps of sequences have them.
///
/// # Errors
/// What they have not.
pub(super) fn takes_rows(view: &TensorView) -> Result<(), &'static str> {
    if view.shape[1] > RaggedMap::END as usize {
        return Err("there are more than 2^30 rows, and maps of packed sequences have no more");
    }
    let apart = (view.strides[1] as u64).saturating_mul(view.element_bytes());
    if view.shape[1] > 1 && apart >= Boxes::APART {
        return Err("rows are 2^34 bytes apart or more, and maps of packed sequences have none so far");
    }
    Ok(())
}

impl Launch {
    /// `entry` must be a packed Hopper one. `instead` solves the same problem for any tensors.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there are too many tiles, or tensors that the copy engine does not take.
    pub fn new(
        entry: &AttnInfo,
        instead: Option<&AttnInfo>,
        p: &Problem,
        capabilities: &Capabilities,
        tensors: &Tensors,
    ) -> Result<Self, Error> {
        takes_packed(tensors).map_err(|reason| Error::unsupported(entry.contract.symbol, reason))?;
        let (_, window) = validate::mask(p);
        let (scale_log2, softcap) = validate::base_two(p);
        let (sequences, order) = packed::order(p, entry.tile_m, capabilities)?;
        let [[_, q_len, ..], [_, k_len, ..]] = p.shapes();
        let equal = [q_len, k_len] == [p.seqlen_q, p.seqlen_k].map(|most| p.batch.saturating_mul(most));
        let tiles = (&entry.contract, entry.mask, entry.tile_m);
        let rounds = dealt(equal, p, tiles, order, &sequences, capabilities);
        let instead = instead.and_then(|entry| {
            let (sequences, order) = packed::order(p, entry.tile_m, capabilities).ok()?;
            Some(Instead { kernel: place(&entry.contract), sequences, order })
        });
        Ok(Launch {
            kernel: place(&entry.contract),
            grid: [rounds.blocks(), 1, 1],
            boxes: boxes(tensors, entry).map(|boxes| Boxes { kind: MapKind::Ragged, ..boxes }),
            told: Told {
                lse: forward::lse(tensors.lse.as_ref()),
                rounds,
                window,
                scale_log2,
                softcap,
                q_len: q_len as u32,
                k_len: k_len as u32,
                integers: packed::integers(p, tensors),
                sequences,
                bottom_right: (p.alignment == Alignment::BottomRight).into(),
            },
            instead,
        })
    }

    /// The same for other tensors of the same problem: by the portable kernel where the copy engine does not
    /// take them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where it does not, and no portable kernel takes its place.
    pub fn bind(&self, p: &Problem, tensors: &Tensors) -> Result<Launches, Error> {
        match (takes_packed(tensors), &self.instead) {
            (Ok(()), _) => {
                let (lse, integers) = (forward::lse(tensors.lse.as_ref()), packed::integers(p, tensors));
                let told = Told { lse, integers, ..self.told };
                let boxes = boxes_again(&self.boxes, tensors);
                Ok(Launches::HopperPacked(Launch { boxes, told, ..*self }))
            }
            (Err(_), Some(Instead { kernel, sequences, order })) => {
                Ok(Launches::Packed(packed::Launch::of(*kernel, p, tensors, *sequences, *order)))
            }
            (Err(reason), None) => Err(Error::unsupported(self.contract().symbol, reason)),
        }
    }

    /// Hands over its place, its blocks and the bytes of its parameters, once `maps` has encoded its tensors.
    ///
    /// # Errors
    /// Those of either.
    pub fn each(
        &self,
        mut maps: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Told { lse, rounds, window, scale_log2, softcap, q_len, k_len, .. } = self.told;
        let mut map = |at: usize| Ok(RaggedMap { map: maps(&self.boxes[at])? });
        let [q, k, v, o] = [map(0)?, map(1)?, map(2)?, map(3)?];
        let forward = HopperParams { q, k, v, o, lse, rounds, window, scale_log2, softcap, q_len, k_len };
        let Told { integers: [cu_seqlens_q, cu_seqlens_k, seqused_k], sequences, bottom_right, .. } =
            self.told;
        let params = VarlenParams { forward, cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right };
        // SAFETY: no family's parameters have padding (`spec` tests it of these).
        launch(self.kernel, self.grid, unsafe { bytes_of(&params) })
    }

    fn contract(&self) -> &'static Contract {
        &KERNELS[self.kernel]
    }

    /// The kernel that takes other tensors, if there is one.
    pub fn other(&self) -> Option<usize> {
        self.instead.map(|instead| instead.kernel)
    }
}

/// Tiles of a block, where sequences may differ.
const TILES: u32 = 2;

/// Which block does which of a kernel's tiles, by its mask and their queries. Sequences that are all
/// `equal`ly long are dealt out as batches are. Of others nobody knows before the launch what tiles cost:
/// blocks are then short, and the device hands the next to whoever is done.
pub(super) fn dealt(
    equal: bool,
    p: &Problem,
    (contract, mask, tile_m): (&Contract, MaskKind, u32),
    order: TileOrder,
    sequences: &Sequences,
    capabilities: &Capabilities,
) -> TileRounds {
    if !equal {
        return TileRounds::single(order.resident(order.tiles.div_ceil(TILES)));
    }
    let order = order.resident(capabilities.sms * capabilities.blocks_per_sm(contract));
    let before = p.seqlen_k.saturating_sub(p.seqlen_q) as u64;
    rounds(mask, tile_m, order, |m_block| m_block % sequences.each.get(), before)
}
