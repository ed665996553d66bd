//! The forward family: one kernel does all of a tile of queries.
use super::{One, cache, place};
use crate::plan::Tensors;
use crate::{AlibiSlopes, Capabilities, Error, LseView, Problem, TensorView, validate};
use spec::{AttnInfo, FwdParams, Lse, PerHead, Tensor, TileOrder, TileScheduler};

/// The launch of a forward kernel.
pub(crate) type Launch = One<FwdParams>;

impl Launch {
    /// Blocks as the entry's type computes them from the same order.
    pub fn new(entry: &AttnInfo, p: &Problem, tensors: &Tensors, order: TileOrder) -> Self {
        let blocks = match entry.scheduler {
            TileScheduler::Persistent => order.tiles.min(order.resident),
            _ => order.tiles,
        };
        let params = params(p, tensors, order);
        Launch { kernel: place(&entry.contract), grid: [blocks, 1, 1], params }
    }

    /// The same for other tensors of the same problem.
    pub fn bind(&self, p: &Problem, tensors: &Tensors) -> Self {
        Launch { params: params(p, tensors, self.params.order), ..*self }
    }
}

/// The order of tiles.
pub(crate) fn order(p: &Problem, entry: &AttnInfo, capabilities: &Capabilities) -> Result<TileOrder, Error> {
    let group = group(p, capabilities);
    let m_blocks = p.seqlen_q.div_ceil(entry.tile_m as usize);
    let order = TileOrder::new(m_blocks as u32, p.batch as u32, p.heads_q as u32, p.heads_k as u32, group);
    let order = order.ok_or_else(|| {
        let feature = format_args!("{m_blocks} query blocks for each of {} x {} heads", p.batch, p.heads_q);
        Error::unsupported(feature, "a launch has less than 2^31 blocks; split the batch")
    })?;
    Ok(match entry.scheduler {
        TileScheduler::Persistent => {
            order.resident(capabilities.sms * capabilities.blocks_per_sm(&entry.contract))
        }
        _ => order,
    })
}

/// Heads that run together: as many as have keys and values that fit the L2 cache, so that the longest tiles
/// of all of them come first; where every tile is equally long that gains nothing, and head by head keeps the
/// cache warmer.
pub(super) fn group(p: &Problem, capabilities: &Capabilities) -> u32 {
    let (_, window) = validate::mask(p);
    let equally_long = window.right == spec::Window::UNBOUNDED || window.left != spec::Window::UNBOUNDED;
    if equally_long { 1 } else { head_group(p, capabilities) }
}

/// Query heads whose keys and values fill at most 60 % of the L2 cache (36 MiB on an H200:
/// docs/performance-log.md), dividing all heads.
fn head_group(p: &Problem, capabilities: &Capabilities) -> u32 {
    let kv_bytes = 2 * p.seqlen_k as u64 * p.head_dim as u64 * p.dtype.bytes() as u64;
    let kv_heads = (capabilities.l2_bytes * 3 / 5 / kv_bytes).max(1);
    let all_heads = (p.batch * p.heads_q) as u64;
    let limit = kv_heads.saturating_mul((p.heads_q / p.heads_k) as u64);
    let pairs = (1..).take_while(|d| d * d <= all_heads).filter(|d| all_heads.is_multiple_of(*d));
    pairs.flat_map(|d| [d, all_heads / d]).filter(|group| *group <= limit).max().unwrap_or(1) as u32
}

pub(super) fn params(p: &Problem, tensors: &Tensors, order: TileOrder) -> FwdParams {
    let (_, window) = validate::mask(p);
    let (scale_log2, softcap) = validate::base_two(p);
    let [q, k, v, o] = tensors.views.map(|view| tensor(&view));
    let lse = lse(tensors.lse.as_ref());
    let alibi = slopes(tensors.alibi.as_ref());
    FwdParams { q, k, v, o, lse, window, scale_log2, softcap, order, alibi }
}

/// A validated view of the log-sum-exp in bytes, if it is wanted.
pub(super) fn lse(view: Option<&LseView>) -> Lse {
    view.map_or(Lse { base: 0, batch_bytes: 0, head_bytes: 0 }, |view| {
        let [batch_bytes, head_bytes] = view.strides.map(|stride| (stride as u64).wrapping_mul(4));
        Lse { base: view.address, batch_bytes, head_bytes }
    })
}

/// Validated slopes in bytes, if there are some.
pub(super) fn slopes(view: Option<&AlibiSlopes>) -> PerHead {
    view.map_or(cache::per_head(0, [0; 2]), |view| cache::per_head(view.address, view.strides))
}

/// A validated view in bytes. Strides of extents of 1 are never taken; 0 stands for whatever the caller had
/// there.
pub(super) fn tensor(view: &TensorView) -> Tensor {
    let bytes = |dim: usize| {
        if view.shape[dim] == 1 { 0 } else { (view.strides[dim] as u64).wrapping_mul(view.element_bytes()) }
    };
    Tensor {
        base: view.address,
        batch_bytes: bytes(0),
        head_bytes: bytes(2),
        row_bytes: bytes(1) as u32,
        rows: view.shape[1].min(u32::MAX as usize) as u32,
        chunks: (view.shape[3] * view.dtype.bytes() / 16) as u32,
        reserved: 0,
    }
}
