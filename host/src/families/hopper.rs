//! The Hopper family: forward attention by warpgroups and a copy engine. The engine goes by tensor maps,
//! which a driver encodes when tensors are first launched: a plan holds what the maps are of.
use super::{Launches, One, forward, place};
use crate::plan::Tensors;
use crate::prepared::bytes_of;
use crate::{Boxes, Capabilities, Error, MapKind, Problem, TensorView, validate};
use spec::{
    AttnInfo, Contract, FwdParams, HopperParams, KERNELS, Lse, MaskKind, TensorMap, TileOrder, TileRounds,
    Window, WorkTile,
};

/// The launch of a Hopper kernel.
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

/// What a Hopper kernel is told beside its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Told {
    lse: Lse,
    rounds: TileRounds,
    window: Window,
    scale_log2: f32,
    softcap: f32,
    q_len: u32,
    k_len: u32,
}

/// A portable kernel for the same problem.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Instead {
    kernel: usize,
    grid: [u32; 3],
    order: TileOrder,
}

impl Launch {
    /// `entry` must be a Hopper one. `instead` solves the same problem for any tensors.
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
        takes(tensors).map_err(|reason| Error::unsupported(entry.contract.symbol, reason))?;
        let (_, window) = validate::mask(p);
        let (scale_log2, softcap) = validate::base_two(p);
        let before = p.seqlen_k.saturating_sub(p.seqlen_q) as u64;
        let order = forward::order(p, entry, capabilities)?;
        let rounds = rounds(entry.mask, entry.tile_m, order, |m_block| m_block, before);
        let instead = instead.and_then(|entry| {
            let order = forward::order(p, entry, capabilities).ok()?;
            let One { kernel, grid, .. } = forward::Launch::new(entry, p, tensors, order);
            Some(Instead { kernel, grid, order })
        });
        Ok(Launch {
            kernel: place(&entry.contract),
            grid: [rounds.blocks(), 1, 1],
            boxes: boxes(tensors, entry),
            told: Told {
                lse: forward::lse(tensors.lse.as_ref()),
                rounds,
                window,
                scale_log2,
                softcap,
                q_len: p.seqlen_q as u32,
                k_len: p.seqlen_k as u32,
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
        match (takes(tensors), &self.instead) {
            (Ok(()), _) => {
                let boxes = boxes_again(&self.boxes, tensors);
                let told = Told { lse: forward::lse(tensors.lse.as_ref()), ..self.told };
                Ok(Launches::Hopper(Launch { boxes, told, ..*self }))
            }
            (Err(_), Some(Instead { kernel, grid, order })) => {
                let params = forward::params(p, tensors, *order);
                Ok(Launches::Forward(One { kernel: *kernel, grid: *grid, params }))
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
        maps: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let params = self.params(maps)?;
        // SAFETY: no family's parameters have padding (`spec` tests it of these).
        launch(self.kernel, self.grid, unsafe { bytes_of(&params) })
    }

    pub(super) fn params(
        &self,
        mut maps: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
    ) -> Result<HopperParams, Error> {
        let Told { lse, rounds, window, scale_log2, softcap, q_len, k_len } = self.told;
        let [q, k, v, o] = &self.boxes;
        let [q, k, v, o] = [maps(q)?, maps(k)?, maps(v)?, maps(o)?];
        Ok(HopperParams { q, k, v, o, lse, rounds, window, scale_log2, softcap, q_len, k_len })
    }

    /// The order of tiles.
    pub(super) const fn order(&self) -> &TileOrder {
        &self.told.rounds.order
    }

    fn contract(&self) -> &'static Contract {
        &KERNELS[self.kernel]
    }

    /// The kernel that takes other tensors, if there is one.
    pub fn other(&self) -> Option<usize> {
        self.instead.map(|instead| instead.kernel)
    }
}

/// Which block does which tiles of `tile_m` queries. Under a causal mask two at a time, a long and a short
/// one, so that all blocks have the same work (H200, 16 heads of 2048, D = 128: better than the longest
/// first), unless pairs leave some block more than single tiles would: 9 heads of 2048 are 72 pairs for 132
/// SMs.
///
/// A tile is so many-th of its sequence as `of_sequence` says of its `m_block`; a sequence's first query sees
/// `before` keys.
pub(super) fn rounds(
    mask: MaskKind,
    tile_m: u32,
    order: TileOrder,
    of_sequence: impl Fn(u32) -> u32,
    before: u64,
) -> TileRounds {
    let single = TileRounds::single(order);
    let paired = (mask == MaskKind::Causal).then(|| TileRounds::paired(order)).flatten();
    // Of many rounds one is nothing, and counting takes its time.
    let counts = order.tiles <= 64 * order.resident;
    let keys = |tile: WorkTile| u64::from(of_sequence(tile.m_block) + 1) * u64::from(tile_m) + before;
    let most = |rounds: &TileRounds| longest(*rounds, keys);
    paired.filter(|paired| !counts || most(paired) <= most(&single)).unwrap_or(single)
}

/// Keys that the block with the most of them takes, where a tile takes so many.
fn longest(rounds: TileRounds, keys: impl Fn(WorkTile) -> u64) -> u64 {
    let blocks = rounds.blocks();
    (0..blocks).map(|block| rounds.of(block, blocks).map(&keys).sum()).max().unwrap_or(0)
}

/// Checks that the copy engine takes tensors that have been checked.
///
/// # Errors
/// What it does not take.
pub(crate) fn takes(tensors: &Tensors) -> Result<(), &'static str> {
    takes_views(&tensors.views)
}

/// The same of these.
///
/// # Errors
/// What it does not take.
pub(super) fn takes_views(views: &[TensorView]) -> Result<(), &'static str> {
    let strides = views.iter().flat_map(|view| {
        let dims = view.shape.iter().zip(&view.strides).take(3).filter(|(extent, _)| **extent > 1);
        let row = view.shape[3] as u64 * view.element_bytes();
        dims.map(move |(_, stride)| ((*stride as u64).saturating_mul(view.element_bytes()), row))
    });
    for (stride, row) in strides {
        if stride == 0 {
            return Err("a stride is 0, and Hopper's copy engine takes no tensor that repeats itself");
        }
        if stride < row {
            return Err("rows overlap, and Hopper's copy engine takes no tensor that repeats itself");
        }
        if stride >= MAX_STRIDE {
            return Err("a stride is 2^40 bytes or more, and Hopper's copy engine counts in 40 bits");
        }
    }
    Ok(())
}

/// Strides of a tensor map are less.
const MAX_STRIDE: u64 = 1 << 40;

/// The boxes of Q, K, V and O that a kernel copies.
pub(super) fn boxes(tensors: &Tensors, entry: &AttnInfo) -> [Boxes; 4] {
    let [queries, keys] = entry.boxes();
    let [q, k, v, o] = &tensors.views;
    [(q, queries), (k, keys), (v, keys), (o, queries)].map(|(view, of)| Boxes { of, ..whole(view) })
}

/// The same boxes of other tensors.
pub(super) fn boxes_again(boxes: &[Boxes; 4], tensors: &Tensors) -> [Boxes; 4] {
    std::array::from_fn(|at| {
        let Boxes { of, kind, .. } = boxes[at];
        Boxes { of, kind, ..whole(&tensors.views[at]) }
    })
}

/// A view that the copy engine takes, of which no box is known.
pub(super) fn whole(view: &TensorView) -> Boxes {
    let [batches, rows, heads, columns] = view.shape.map(|extent| extent as u32);
    // Strides of extents of 1 are never taken, and may be anything but 0.
    let bytes = |dim: usize| match view.shape[dim] {
        1 => u64::from(columns) * view.element_bytes(),
        _ => view.strides[dim] as u64 * view.element_bytes(),
    };
    Boxes {
        address: view.address,
        strides: [bytes(1), bytes(2), bytes(0)],
        extents: [columns, rows, heads, batches],
        of: [0; 2],
        dtype: view.dtype,
        kind: MapKind::Whole,
    }
}

/// What a plan says of the parameters of a Hopper kernel: there are none without a driver.
pub(crate) fn no_params(contract: &Contract) -> Result<&'static FwdParams, Error> {
    let reason = "it is told tensor maps, which a driver encodes; `config` names a portable kernel";
    Err(Error::unsupported(format_args!("the parameters of {}", contract.symbol), reason))
}
