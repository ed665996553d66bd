//! The packed family: forward kernels that find their sequence by integers on the device. Which of them
//! solves a problem, and how many blocks there may be work for.
use super::{One, forward, place};
use crate::plan::Tensors;
use crate::table::Choice;
use crate::{Alignment, Capabilities, Error, Index, Problem};
use spec::{AttnInfo, Integers, MaskKind, PACKED, Sequences, TileOrder, VarlenParams};

/// The launch of a packed kernel.
pub(crate) type Launch = One<VarlenParams>;

impl Launch {
    /// `entry` must be a packed one.
    ///
    /// # Errors
    /// Those of [`order`].
    pub fn new(
        entry: &AttnInfo,
        p: &Problem,
        capabilities: &Capabilities,
        tensors: &Tensors,
    ) -> Result<Self, Error> {
        let (sequences, order) = order(p, entry.tile_m, capabilities)?;
        Ok(Self::of(place(&entry.contract), p, tensors, sequences, order))
    }

    /// That of the kernel at a place in [`spec::KERNELS`].
    pub fn of(kernel: usize, p: &Problem, tensors: &Tensors, sequences: Sequences, order: TileOrder) -> Self {
        Launch { kernel, grid: [order.tiles, 1, 1], params: params(p, tensors, sequences, order) }
    }

    /// The same for other tensors of the same problem.
    pub fn bind(&self, p: &Problem, tensors: &Tensors) -> Self {
        let params = params(p, tensors, self.params.sequences, self.params.forward.order);
        Launch { params, ..*self }
    }
}

/// Which query block of a head is whose, in tiles of `tile_m`, and the order of the tiles of all heads.
///
/// # Errors
/// [`Error::Unsupported`] where there are too many blocks.
pub(crate) fn order(
    p: &Problem,
    tile_m: u32,
    capabilities: &Capabilities,
) -> Result<(Sequences, TileOrder), Error> {
    let [[_, rows, ..], _] = p.shapes();
    let sequences = Sequences::new(p.batch as u32, p.seqlen_q as u32, rows as u32, tile_m);
    let one = Problem { batch: 1, ..*p };
    let group = forward::group(&one, capabilities);
    let order = sequences.and_then(|(sequences, m_blocks)| {
        let order = TileOrder::new(m_blocks, 1, p.heads_q as u32, p.heads_k as u32, group)?;
        Some((sequences, order))
    });
    order.ok_or_else(|| {
        let feature = format_args!("{rows} rows of {} sequences and {} heads", p.batch, p.heads_q);
        Error::unsupported(feature, "a launch has less than 2^31 blocks, and 2^30 sequences; split the batch")
    })
}

/// Where sequences begin among queries and keys, and how many keys they have used.
pub(super) fn integers(p: &Problem, tensors: &Tensors) -> [Integers; 3] {
    let integers = |index: Option<Index>, count: usize| match index {
        Some(index) => Integers { base: index.address, count: count as u32, reserved: 0 },
        None => Integers { base: 0, count: 0, reserved: 0 },
    };
    let packed = tensors.packed;
    [
        integers(packed.map(|packed| packed.cu_seqlens_q), p.batch + 1),
        integers(packed.map(|packed| packed.cu_seqlens_k), p.batch + 1),
        integers(packed.and_then(|packed| packed.seqused_k), p.batch),
    ]
}

fn params(p: &Problem, tensors: &Tensors, sequences: Sequences, order: TileOrder) -> VarlenParams {
    let [cu_seqlens_q, cu_seqlens_k, seqused_k] = integers(p, tensors);
    let bottom_right = (p.alignment == Alignment::BottomRight).into();
    let forward = forward::params(p, tensors, order);
    VarlenParams { forward, cu_seqlens_q, cu_seqlens_k, seqused_k, sequences, bottom_right }
}

const LARGE: &str = "sequences of several tiles that fill the device: larger tiles read keys and values less \
                     often";
const SMALL: &str = "short sequences, or few rows for this device: smaller tiles leave less of it idle";
const ONLY: &str = "the one packed kernel of this type, head dim and mask that fits the device";

/// The portable kernel of a packed problem: the larger tile, but where a smaller one holds the sequences on
/// the average, or larger ones are too few for the device.
///
/// # Errors
/// [`Error::Unsupported`] where none fits the device.
pub(crate) fn portable(p: &Problem, mask: MaskKind, capabilities: &Capabilities) -> Result<Choice, Error> {
    let head_dim = PACKED.iter().map(|e| e.head_dim).filter(|d| *d as usize >= p.head_dim).min();
    let solves = |e: &&AttnInfo| (e.dtype, e.mask, Some(e.head_dim)) == (p.dtype, mask, head_dim);
    let mut candidates = PACKED.iter().filter(solves).filter(|e| capabilities.runs(&e.contract).is_ok());
    let Some(first) = candidates.next() else {
        let (dtype, mask) = (p.dtype.name(), mask.name());
        let feature = format_args!("packed {dtype} head_dim {} {mask} on {}", p.head_dim, capabilities.name);
        let reason = format_args!(
            "no packed kernel fits its {} bytes of shared memory a block",
            capabilities.smem_per_block
        );
        return Err(Error::unsupported(feature, reason));
    };
    let Some(second) = candidates.next() else { return Ok(Choice::new(first, ONLY)) };
    let [[_, rows, ..], _] = p.shapes();
    let tiles = rows.div_ceil(first.tile_m as usize) as u64 * p.heads_q as u64;
    let resident = u64::from(capabilities.sms) * u64::from(capabilities.blocks_per_sm(&first.contract));
    // H200, sequences of 64 to 1024 rows, equal and drawn uniformly: the larger tile takes 0.57 to 0.9 of the
    // time at D = 128 and 0.69 to 1.1 at D = 64, but for sequences that the smaller one holds (1.1 to 1.3).
    if rows / p.batch > second.tile_m as usize && tiles >= resident {
        Ok(Choice::new(first, LARGE))
    } else {
        Ok(Choice::new(second, SMALL))
    }
}
