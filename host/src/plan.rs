//! Problem and capabilities to a launch: a pure function that touches no device.
use crate::split::Split;
use crate::table::{self, Choice};
use crate::{Capabilities, Error, Forward, Problem, TensorView, Tuning, Workspace, validate};
use spec::{ENTRIES, EntryInfo, FwdParams, Grid, Lse, Tensor, TileOrder};

/// What will be launched, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The kernel.
    pub entry: &'static EntryInfo,
    /// Blocks of the launch.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub smem: u32,
    /// Why this entry.
    pub reason: &'static str,
    /// Bytes that a launch uses of [`Forward::workspace`]; 0 where it needs none.
    pub workspace: u64,
    /// What it was made for.
    pub problem: Problem,
    /// How blocks share the keys, where they do.
    pub(crate) split: Option<Split>,
    /// Its index in [`ENTRIES`].
    pub(crate) index: usize,
    /// The tensors that it was made with.
    tensors: Tensors,
    params: FwdParams,
}

/// The tensors of a [`Forward`]: what may change between launches of one plan.
type Tensors = ([TensorView; 4], Option<crate::LseView>, Option<Workspace>);

fn tensors(f: &Forward<'_>) -> Tensors {
    ([f.q, f.k, f.v, f.o], f.lse, f.workspace)
}

/// Whether a problem can be solved on a device, and by which entry. Looks at no tensor.
///
/// # Errors
/// [`Error::Invalid`] where the problem contradicts itself, [`Error::Unsupported`] where no kernel solves it on this device.
pub fn supports(problem: &Problem, capabilities: &Capabilities) -> Result<&'static EntryInfo, Error> {
    validate::problem(problem)?;
    let choice = table::choose(problem, validate::mask(problem).0, capabilities, None, 0, &Tuning::new())?;
    order(problem, choice.entry, capabilities)?;
    Ok(choice.entry)
}

/// Bytes of workspace with which `forward` runs fastest on a device with these capabilities; 0 where none helps. Any that it has already
/// makes no difference.
///
/// # Errors
/// Those of [`plan_with`].
pub fn workspace_bytes(forward: &Forward<'_>, capabilities: &Capabilities, tuning: &Tuning) -> Result<u64, Error> {
    let problem = validate::forward(&Forward { workspace: None, ..*forward })?;
    let (mask, _) = validate::mask(&problem);
    let choice = table::choose(&problem, mask, capabilities, forward.config, u64::MAX, tuning)?;
    Split::workspace_of(&problem, choice.entry, capabilities)
}

/// Checks `forward` and decides how it is launched on a device with these capabilities.
///
/// # Errors
/// [`Error::Invalid`] names the value that is wrong, [`Error::Unsupported`] the feature that this crate or this device has not.
pub fn plan(forward: &Forward<'_>, capabilities: &Capabilities) -> Result<Plan, Error> {
    plan_with(forward, capabilities, &Tuning::new())
}

/// The same with what was measured on this device, which comes before the planner's own table.
///
/// # Errors
/// Those of [`plan`]; [`Error::Invalid`] where the measured choice is not an entry that solves the problem.
pub fn plan_with(forward: &Forward<'_>, capabilities: &Capabilities, tuning: &Tuning) -> Result<Plan, Error> {
    let problem = validate::forward(forward)?;
    let offered = forward.workspace.map_or(0, |workspace| workspace.bytes);
    let (mask, _) = validate::mask(&problem);
    let Choice { entry, reason } = table::choose(&problem, mask, capabilities, forward.config, offered, tuning)?;
    let split = Split::of(&problem, entry, capabilities)?;
    let workspace = split.map_or(0, |split| split.workspace());
    workspace_suffices(offered, workspace, entry)?;
    let index = ENTRIES.iter().position(|e| e.symbol == entry.symbol).unwrap_or_default();
    let order = order(&problem, entry, capabilities)?;
    let tensors = tensors(forward);
    let params = params(&problem, &tensors, order);
    let (grid, block) = (grid(entry, &order, split), [entry.threads, 1, 1]);
    Ok(Plan { entry, grid, block, smem: entry.smem_bytes, reason, workspace, problem, split, index, tensors, params })
}

fn workspace_suffices(offered: u64, needed: u64, entry: &EntryInfo) -> Result<(), Error> {
    if offered >= needed {
        return Ok(());
    }
    let expected = format_args!("{} needs {needed} for this problem on this device", entry.symbol);
    Err(Error::invalid("workspace.bytes", offered, expected))
}

impl Plan {
    /// The kernel's parameters for `forward`: this plan's problem, with its own or other tensors.
    ///
    /// # Errors
    /// [`Error::Invalid`] where `forward` is another problem than the plan's, or its tensors are invalid.
    pub fn params(&self, forward: &Forward<'_>) -> Result<FwdParams, Error> {
        let tensors = tensors(forward);
        if tensors == self.tensors && forward.problem() == self.problem {
            return Ok(self.params);
        }
        let problem = validate::forward(forward)?;
        if problem != self.problem {
            let expected = format_args!("the plan was made for {:?}; make another", self.problem);
            return Err(Error::invalid("forward", format!("{problem:?}"), expected));
        }
        workspace_suffices(forward.workspace.map_or(0, |workspace| workspace.bytes), self.workspace, self.entry)?;
        Ok(params(&problem, &tensors, self.params.order))
    }
}

/// Blocks of the launch, as the entry's type computes them from the same order.
fn grid(entry: &EntryInfo, order: &TileOrder, split: Option<Split>) -> [u32; 3] {
    match entry.grid {
        Grid::Split => [order.tiles * split.map_or(1, |split| split.slices()), 1, 1],
        Grid::OneTileABlock => [order.tiles, 1, 1],
        Grid::Persistent => [order.tiles.min(order.resident), 1, 1],
    }
}

/// The order of tiles. Heads run in groups whose keys and values fit the L2 cache, so that the longest tiles of all of them come first;
/// where every tile is equally long that gains nothing, and head by head keeps the cache warmer.
fn order(p: &Problem, entry: &EntryInfo, capabilities: &Capabilities) -> Result<TileOrder, Error> {
    let (_, window) = validate::mask(p);
    let equally_long = window.right == spec::Window::UNBOUNDED || window.left != spec::Window::UNBOUNDED;
    let group = if equally_long { 1 } else { head_group(p, capabilities) };
    let m_blocks = p.seqlen_q.div_ceil(entry.tile_m as usize);
    let order = TileOrder::new(m_blocks as u32, p.batch as u32, p.heads_q as u32, p.heads_k as u32, group);
    let order = order.ok_or_else(|| {
        let feature = format_args!("{m_blocks} query blocks for each of {} x {} heads", p.batch, p.heads_q);
        Error::unsupported(feature, "a launch has less than 2^31 blocks; split the batch")
    })?;
    Ok(match entry.grid {
        Grid::OneTileABlock | Grid::Split => order,
        Grid::Persistent => order.resident(capabilities.sms * capabilities.blocks_per_sm(entry)),
    })
}

/// Query heads whose keys and values fill at most 60 % of the L2 cache (36 MiB on an H200: docs/performance-log.md), dividing all heads.
fn head_group(p: &Problem, capabilities: &Capabilities) -> u32 {
    let kv_bytes = 2 * p.seqlen_k as u64 * p.head_dim as u64 * p.dtype.bytes() as u64;
    let kv_heads = (capabilities.l2_bytes * 3 / 5 / kv_bytes).max(1);
    let all_heads = (p.batch * p.heads_q) as u64;
    let limit = kv_heads.saturating_mul((p.heads_q / p.heads_k) as u64);
    let pairs = (1..).take_while(|d| d * d <= all_heads).filter(|d| all_heads.is_multiple_of(*d));
    pairs.flat_map(|d| [d, all_heads / d]).filter(|group| *group <= limit).max().unwrap_or(1) as u32
}

fn params(p: &Problem, (views, lse, _): &Tensors, order: TileOrder) -> FwdParams {
    let (_, window) = validate::mask(p);
    let (scale_log2, softcap) = validate::base_two(p);
    let [q, k, v, o] = views.map(|view| tensor(&view));
    let lse = lse.map_or(Lse { base: 0, batch_bytes: 0, head_bytes: 0 }, |view| {
        let [batch_bytes, head_bytes] = view.strides.map(|stride| (stride as u64).wrapping_mul(4));
        Lse { base: view.address, batch_bytes, head_bytes }
    });
    FwdParams { q, k, v, o, lse, window, scale_log2, softcap, order }
}

/// A validated view in bytes. Strides of extents of 1 are never taken; 0 stands for whatever the caller had there.
fn tensor(view: &TensorView) -> Tensor {
    let bytes = |dim: usize| {
        if view.shape[dim] == 1 { 0 } else { (view.strides[dim] as u64).wrapping_mul(view.element_bytes()) }
    };
    Tensor {
        base: view.address,
        batch_bytes: bytes(0),
        head_bytes: bytes(2),
        row_bytes: bytes(1) as u32,
        rows: view.shape[1] as u32,
        chunks: (view.shape[3] / 8) as u32,
        reserved: 0,
    }
}
