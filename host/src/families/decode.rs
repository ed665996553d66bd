//! The decode family: which entry, how many blocks, and where splits leave what they make.
use super::{Kernels, cache, place};
use crate::table::ASKED;
use crate::{Boxes, Capabilities, Decode, Error, Problem, Splits, validate};
use core::cmp::Reverse;
use spec::{
    AttnInfo, Contract, Counters, DECODE_COMBINES, DECODES, DecodeOrder, DecodeParams, FastDiv, Integers,
    KERNELS, Keys, Lse, MaskKind, PageKind, Partials, TensorMap, Window,
};

/// Shares of the device below which a sequence is not split: two halves of a wave that end together cost more
/// than one block each (H200, docs/performance-log.md).
const THRESHOLD: f32 = 2.25;

/// Of what the device holds at once, the part that splits are made for where there are blocks for many
/// waves. A graph that was captured for many sequences and finds few has as many blocks all the same, and
/// those that find nothing need places beside those that do: with every place taken 2048 of them stood behind
/// 8 sequences of 4096 keys and took 9.9 us of 45.6 (H200).
const DEALT: f32 = 0.75;
/// How much finer sequences are cut where all of them fit the device at once, whole, two blocks an SM: it is
/// then short of blocks to the end, unless those that are cut leave enough. 28 sequences of 4096 keys take
/// 0.87 to 0.94 of the time, 32 of 64 to 8192 0.91, 31 of 1024 beside one of 32768 0.95 (H200). With a block
/// an SM, 15 beside the long one take 0.83, but 16 of 4096, where every microsecond counts, 1.01. Measured
/// with 8 rows a block.
const FINER: f32 = 2.0;
/// Shares that sequences which are all as long may be of after that: those stay whole, and with them those a
/// fourth longer, which are below [`THRESHOLD`]. Cut in two such sequences take 1.07 of the time.
const EVEN: f32 = 1.75;
/// Why sequences stay whole that had better be cut.
const UNCUT: &str =
    "without the workspace that it asks for no sequence is cut by its keys: SMs may do nothing";
/// Fewest items, times key heads and blocks of rows, that do not fit the device's arithmetic of them.
const TOO_MANY: u64 = 1 << 30;

/// The launches of a decode kernel, and of the one that merges splits where no counters tell who is last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Launch {
    /// Its place in [`spec::KERNELS`].
    kernel: usize,
    /// The place of the kernel that merges.
    combine: usize,
    params: DecodeParams,
    /// Columns of a split's row.
    columns: u64,
    /// Bytes of workspace; 0 where nothing is split.
    pub workspace: u64,
    /// Bytes of counters, where there are some.
    pub counters: u64,
}

/// Most rows of a sequence and key head. A block takes those that its entry has, and several blocks of the
/// same keys find these in the L2 cache, which gives them 16 rows at a time. A prefill kernel reads them for
/// each query head, and cuts no sequence: with more rows than these it has enough to do for each key.
pub(crate) const MAX_ROWS: usize = 64;

/// Whether there are decode kernels for the request: few rows, as many for each sequence, without slopes.
pub(super) fn takes(d: &Decode<'_>) -> bool {
    DECODES.iter().any(|entry| solves(entry, d))
}

/// Rows of one sequence and key head.
pub(crate) fn rows(p: &Problem) -> usize {
    (p.heads_q / p.heads_k).saturating_mul(p.seqlen_q)
}

/// Blocks that an entry takes for them.
fn row_blocks(e: &AttnInfo, p: &Problem) -> u32 {
    (rows(p) as u32).div_ceil(e.tile_m)
}

/// Whether the entry solves the request.
fn solves(e: &AttnInfo, d: &Decode<'_>) -> bool {
    let p = d.problem();
    let local = p.mask_kind() == MaskKind::Local;
    d.packed.is_none()
        && d.alibi.is_none()
        && [e.dtype, e.kv_dtype] == [p.dtype, d.cache.pages.keys.dtype]
        && e.head_dim as usize >= p.head_dim
        && rows(&p) <= MAX_ROWS
        && (e.mask == MaskKind::Local) >= local
        && (e.keys == Keys::Cache(PageKind::Rows) || d.cache.tiled())
}

/// Whether the entry may run where results are to be a sequence's own: its warps share keys as those of one
/// that takes any pages, so that these do not matter.
fn keeps_bits(e: &AttnInfo, d: &Decode<'_>, on: &Capabilities) -> bool {
    let kind = |e: &AttnInfo| ([e.dtype, e.kv_dtype], e.head_dim, e.tile_m, e.warps());
    let takes_any = |other: &AttnInfo| other.keys == Keys::Cache(PageKind::Rows) && kind(other) == kind(e);
    !matches!(d.splits, Splits::Chunk(_))
        || DECODES.iter().any(|other| takes_any(other) && on.runs(&other.contract).is_ok())
}

/// Whether the entry does not hold rows at once that two SMs, or two blocks of one, had better share: 16
/// sequences of 8192 keys and 8 key heads with 32 rows take 170 us with the entry of 32, and 124 in two
/// blocks of 16; 32 of 1024 take 37 and 40 (H200). Chunks do not look at the batch.
fn suits(e: &AttnInfo, d: &Decode<'_>, on: &Capabilities) -> bool {
    let p = d.problem();
    let idle = p.batch * p.heads_k <= on.sms as usize;
    e.tile_m <= 16 || !idle || matches!(d.splits, Splits::Chunk(_))
}

/// Blocks of the entry that share a key head's rows; one, as good as one block, where they are so few that
/// each sequence may still have four splits: more rows are more work behind each copy, and the SMs would do
/// nothing. 4 queries of 4 heads on 2048, 4096 and 8192 keys take 9.1, 10.7 and 14.4 us in one block of 16
/// rows, 7.2, 9.0 and 12.8 in two of 8; of 2 sequences on 4096 14.2 and 12.7, of 4 22.4 and 23.5. 8 queries
/// take 8.9, 10.6 and 14.4 in two of 16, 7.7, 10.0 and 14.7 in four of 8; of 2 sequences 14.3 and 20.7 (H200,
/// 8 key heads). On more keys what several read is many bytes of the L2 cache. Chunks do not look at the
/// batch.
fn cost(e: &AttnInfo, d: &Decode<'_>, on: &Capabilities) -> u32 {
    let (p, blocks) = (d.problem(), row_blocks(e, &d.problem()));
    let idle = p.batch * p.heads_k * blocks as usize * 4 <= on.sms as usize;
    let measured = blocks as usize * p.seqlen_k <= 16384;
    if idle && measured && !matches!(d.splits, Splits::Chunk(_)) { 1 } else { blocks }
}

/// Blocks of the entry that an SM holds, where each has more than one to do: one then loads while another
/// looks for its keys or merges. 2 % of the time of 64 sequences, up to 5 % of 24 to 32 (H200). Chunks do not
/// look at the batch.
fn at_once(e: &AttnInfo, d: &Decode<'_>, on: &Capabilities) -> u32 {
    let p = d.problem();
    let crowded = p.batch * p.heads_k * row_blocks(e, &p) as usize > on.sms as usize;
    if crowded && !matches!(d.splits, Splits::Chunk(_)) { on.blocks_per_sm(&e.contract) } else { 0 }
}

/// Why the planner takes an entry.
fn reason(e: &AttnInfo, d: &Decode<'_>, on: &Capabilities) -> &'static str {
    let larger =
        |other: &&AttnInfo| other.tile_m > e.tile_m && other.head_dim == e.head_dim && solves(other, d);
    let one_block = DECODES.iter().filter(larger).any(|other| row_blocks(other, &d.problem()) == 1);
    match row_blocks(e, &d.problem()) {
        _ if at_once(e, d, on) > 1 => {
            "more blocks than SMs: an SM holds several, of which one loads while another looks for its keys"
        }
        2.. if one_block => "few sequences: smaller blocks share the rows, on SMs that would do nothing",
        2.. => "as many rows as a block holds, in several blocks that read the same keys",
        _ => "few rows: the smallest block that holds all of a key head's",
    }
}

/// The entry for a request, and why: the smallest of those that take the fewest blocks, as far as these
/// count, and of these the one of which an SM holds the most, where that counts.
fn choose(d: &Decode<'_>, on: &Capabilities) -> Result<(&'static AttnInfo, &'static str), Error> {
    let p = d.problem();
    if let Some(name) = d.config {
        let Some(entry) = DECODES.iter().find(|e| e.contract.symbol == name) else {
            let expected =
                "it must be for caches: `ferroflash kernels --family decode`, or `paged`, lists them";
            return Err(Error::invalid("config", name, expected));
        };
        if !solves(entry, d) {
            let rows = rows(&p);
            let expected =
                format_args!("it must hold {rows} rows of head_dim {}, mask and pages", p.head_dim);
            return Err(Error::invalid("config", name, expected));
        }
        on.runs(&entry.contract)?;
        return Ok((entry, ASKED));
    }
    let size = |e: &&AttnInfo| {
        let plain = [e.mask == MaskKind::Local, e.keys == Keys::Cache(PageKind::Rows)];
        (e.head_dim, cost(e, d, on), e.tile_m, plain, Reverse(at_once(e, d, on)))
    };
    let fitting = DECODES.iter().filter(|e| solves(e, d) && keeps_bits(e, d, on) && suits(e, d, on));
    if let Some(entry) = fitting.clone().filter(|e| on.runs(&e.contract).is_ok()).min_by_key(size) {
        return Ok((entry, reason(entry, d, on)));
    }
    match fitting.min_by_key(size) {
        Some(entry) => on.runs(&entry.contract).and(Ok((entry, reason(entry, d, on)))),
        None => {
            let feature = format_args!("decoding {p}");
            Err(Error::unsupported(feature, "no decode kernel has such a head_dim, mask and number of rows"))
        }
    }
}

impl Launch {
    /// That of a checked request, with so many bytes of workspace, and why its entry was chosen.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where no entry solves it on this device, or there is more to deal out than is
    /// counted.
    pub fn plan(d: &Decode<'_>, on: &Capabilities, offered: u64) -> Result<(Self, &'static str), Error> {
        let (entry, reason) = choose(d, on)?;
        let (p, [dtype, head_dim]) = (d.problem(), [entry.dtype as u32, entry.head_dim]);
        let merges = |c: &&spec::DecodeCombineInfo| [c.dtype as u32, c.head_dim] == [dtype, head_dim];
        let combine = DECODE_COMBINES.iter().find(merges);
        let combine = combine
            .ok_or_else(|| Error::unsupported(entry.contract.symbol, "no kernel merges its splits"))?;
        let columns = u64::from(entry.head_dim);
        let row_bytes = p.heads_k as u64 * rows(&p) as u64 * (columns + 1) * 4;
        let dealt = |finest: f32| {
            order(d, on, entry, finest).map(|(order, slots)| (order, slots, u64::from(slots) * row_bytes))
        };
        let (order, slots, workspace) = match dealt(FINER)? {
            (.., workspace) if d.splits == Splits::Auto && offered < workspace => dealt(1.0)?,
            dealt => dealt,
        };
        let counters = (p.batch * p.heads_k) as u64 * u64::from(order.row_blocks.get()) * 4;
        // Where sequences may stay whole they do without a workspace.
        let whole = slots == 0 || d.splits == Splits::Auto && offered < workspace;
        let order = if whole { DecodeOrder { splits: 1, ..order } } else { order };
        let reason = if whole && slots > 0 && reason != ASKED { UNCUT } else { reason };
        let launch = Launch {
            kernel: place(&entry.contract),
            combine: place(&combine.contract),
            params: params(d, order, slots.max(1)),
            columns,
            workspace: if whole { 0 } else { workspace },
            counters: if whole { 0 } else { counters },
        };
        Ok((launch.bind(d), reason))
    }

    /// The same for other tensors of the same shape.
    pub fn bind(&self, d: &Decode<'_>) -> Self {
        let lengths = Integers { base: d.cache.lengths.address, ..self.params.order.lengths };
        let order = DecodeOrder { lengths, ..self.params.order };
        let mut params = params(d, order, self.params.partials.slices.get());
        if self.workspace > 0 {
            let Partials { rows, heads, slices, .. } = params.partials;
            let rows = u64::from(rows) * u64::from(heads) * u64::from(slices.get());
            params.partials.rows_base = d.workspace.map_or(0, |workspace| workspace.address);
            params.partials.values_base = params.partials.rows_base + rows * self.columns * 4;
            params.counters = d.counters.map_or(params.counters, |counters| Counters {
                base: counters.address,
                count: (self.counters / 4) as u32,
                reserved: 0,
            });
        }
        Launch { params, ..*self }
    }

    /// The contract of the kernel that computes attention.
    pub const fn contract(&self) -> &'static Contract {
        &KERNELS[self.kernel]
    }

    /// Blocks of the launch.
    pub const fn grid(&self) -> [u32; 3] {
        [self.params.order.blocks, 1, 1]
    }
}

impl Kernels for Launch {
    fn each(
        &self,
        _: impl FnMut(&Boxes) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // SAFETY: the parameters have no padding (`prepared.rs` tests it).
        let params = unsafe { crate::prepared::bytes_of(&self.params) };
        launch(self.kernel, self.grid(), params)?;
        let second = self.workspace > 0 && self.params.counters.count == 0;
        if second { launch(self.combine, self.grid(), params) } else { Ok(()) }
    }

    fn other(&self) -> Option<usize> {
        (self.workspace > 0).then_some(self.combine)
    }
}

/// How sequences are cut, at most `finest` times finer than the device, and slots for the parts of those that
/// are: 0 where none is. Every number follows from bounds; lengths are the device's.
///
/// # Errors
/// [`Error::Unsupported`] where there is more to deal out than the device counts.
fn order(
    d: &Decode<'_>,
    on: &Capabilities,
    entry: &AttnInfo,
    finest: f32,
) -> Result<(DecodeOrder, u32), Error> {
    let (p, blocks_per_sm) = (d.problem(), on.blocks_per_sm(&entry.contract));
    let (sequences, heads, row_blocks) = (p.batch as u32, p.heads_k as u32, row_blocks(entry, &p));
    let all = |each: u32| if each > 1 { sequences * each } else { 0 };
    let each = p.heads_k as u64 * u64::from(row_blocks);
    let resident = on.sms * blocks_per_sm;
    let whole = resident as f32 / each as f32;
    // Items of one block of rows of one key head, at most, and slots, where the device has so many shares.
    let bounds = |share: f32| match d.splits {
        Splits::Auto if share < THRESHOLD => (sequences, 0),
        // The shares of all sequences make up the device, and no sequence has less than one item.
        Splits::Auto => (sequences - 1 + share as u32, share as u32),
        Splits::Exactly(count) => (sequences * count, all(count)),
        Splits::Chunk(keys) => {
            let most = all(p.seqlen_k.div_ceil(keys as usize) as u32);
            let total = d.cache.total_k.map_or(u64::MAX, |total| total as u64 / u64::from(keys));
            let slots = u64::from(most).min(total.saturating_add(u64::from(sequences))) as u32;
            (slots.max(sequences), slots)
        }
    };
    let waves = u64::from(bounds(whole).0) * each / u64::from(resident.max(1));
    let fits = u64::from(sequences) * each <= u64::from(resident) && at_once(entry, d, on) > 1;
    let share = match whole {
        _ if waves >= 4 && whole >= 4.0 => whole * DEALT,
        THRESHOLD.. if fits && entry.tile_m == 8 && d.splits == Splits::Auto => {
            // Whole shares: the device rounds up a little, and slots are as many as shares.
            let finer = (EVEN * sequences as f32).min(whole * finest).floor();
            whole.max(finer)
        }
        _ => whole,
    };
    let (items, slots) = bounds(share);
    // The device's own bound where it has no sum of more sequences than a warp looks at in one go.
    let bound = if sequences > 32 * 32 { u32::MAX >> 16 } else { items };
    if u64::from(bound) * each >= TOO_MANY {
        let feature = format_args!(
            "up to {bound} parts of {sequences} sequences, each of {heads} key heads in {row_blocks} blocks \
             of rows"
        );
        let reason = format_args!("a launch deals out fewer than {TOO_MANY}; split the batch");
        return Err(Error::unsupported(feature, reason));
    }
    // A wave of whole shares: the blocks of a sequence's key heads run side by side and find the same rows of
    // memory open, and what is left over are the last blocks, which the hardware spreads. 132 blocks for 128
    // items take 1 to 3 % longer (H200).
    let (each, least) = (each as u32, sequences * each as u32);
    let wave = share as u32 * each;
    // Where there are more items than two waves, the hardware deals them out better than a stride does.
    let blocks = match items * each {
        items if u64::from(items) > 2 * u64::from(resident) => items,
        _ if least <= wave => wave,
        _ => resident,
    };
    let one = FastDiv::ONE;
    let (splits, chunk) = match d.splits {
        Splits::Auto => (0, one),
        Splits::Exactly(count) => (count, one),
        Splits::Chunk(keys) => (0, FastDiv::new(keys).unwrap_or(one)),
    };
    let order = DecodeOrder {
        lengths: Integers { base: d.cache.lengths.address, count: sequences, reserved: 0 },
        starts: Integers { base: 0, count: 0, reserved: 0 },
        max_keys: p.seqlen_k as u32,
        splits,
        chunk,
        kv_heads: FastDiv::new(heads).unwrap_or(one),
        row_blocks: FastDiv::new(row_blocks).unwrap_or(one),
        rows: entry.tile_m,
        share,
        threshold: THRESHOLD,
        blocks,
        spread: if blocks_per_sm == 1 { wave / 2 } else { 0 },
    };
    Ok((order, slots))
}

/// What kernels are told, without workspace and counters.
fn params(d: &Decode<'_>, order: DecodeOrder, slots: u32) -> DecodeParams {
    let p = d.problem();
    let (_, Window { left, right, .. }) = validate::mask(&p);
    let (scale_log2, softcap) = validate::base_two(&p);
    let (group, none) = (p.heads_q / p.heads_k, Lse { base: 0, batch_bytes: 0, head_bytes: 0 });
    let slices = FastDiv::new(slots).unwrap_or(FastDiv::ONE);
    let rows = (group * p.seqlen_q) as u32;
    DecodeParams {
        q: super::forward::tensor(&d.q),
        o: super::forward::tensor(&d.o),
        lse: super::forward::lse(d.lse.as_ref()),
        sinks: d.sinks.map_or(none, |sinks| Lse { base: sinks.address, batch_bytes: 0, head_bytes: 4 }),
        cache: cache::cache(&d.cache),
        scales: [0, 1].map(|i| cache::scale(&d.cache.pages.scales[i])),
        order,
        partials: Partials {
            rows_base: 0,
            values_base: 0,
            rows,
            heads: p.heads_k as u32,
            slices,
            reserved: 0,
        },
        counters: Counters { base: 0, count: 0, reserved: 0 },
        group: FastDiv::new(group as u32).unwrap_or(FastDiv::ONE),
        // The last query stands at the last key, wherever that is.
        window: Window { shift: 0, left, right },
        scale_log2,
        softcap,
    }
}
