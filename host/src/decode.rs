//! Attention on a cache whose lengths only the device knows: decoding, and prefill in chunks.
use crate::families::{Kernels, on_cache::Launch};
use crate::request::{Request, sealed};
use crate::{
    AlibiSlopes, Alignment, Capabilities, Counters, DType, Error, KvCache, LseView, Mask, PackedQueries,
    PageView, Problem, Sinks, TensorView, Tuning, Workspace, validate,
};
use spec::Contract;

/// In how many parts a sequence's keys are cut, each a thread block's for each key head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Splits {
    /// As many as its share of all sequences' keys is worth on this device. Decided on the device, by the
    /// lengths that it finds there.
    #[default]
    Auto,
    /// So many, but no more than it has tiles of 16 keys. From 2 on it wants a workspace, and at most 64
    /// rows: queries times the query heads of a key head.
    Exactly(u32),
    /// One for each so many keys: what a sequence's results are, to the last bit, then depends on nothing but
    /// the sequence itself and the kind of device, whatever is beside it in the batch, wherever its pages lie
    /// and however large they are. A multiple of 128. Where a sequence may have more keys than that it wants
    /// a workspace.
    Chunk(u32),
}

impl Splits {
    /// A chunk that suits most caches: 1024 keys.
    pub const CHUNK: Splits = Splits::Chunk(1024);
}

/// One attention on a cache: `o = softmax(mask(softcap(scale * q k^T) - alibi)) v` over each sequence's keys.
/// Decoding, and just as well chunks of prompts, whole prompts whose keys are in the cache already, and
/// batches of all of these.
///
/// `q` and `o` are `[batch, queries, heads, head_dim]`, as many queries for each sequence, or
/// [packed](Decode::packed). A sequence's last query stands at its last key. A sequence without a key gives
/// 0, and `-inf` as its log-sum-exp.
///
/// ```
/// # fn main() -> Result<(), ferroflash::Error> {
/// use ferroflash::{Capabilities, DType, Decode, Index, KvCache, KvPages, PageView, TensorView};
/// # let [q, o, keys, values, table, lengths] = [1, 2, 3, 4, 5, 6].map(|n| n << 40);
///
/// let (batch, columns) = (4, 512); // sequences of up to 512 pages of 16 keys
/// let shape = [batch, 1, 32, 128]; // one query each of 32 heads
/// let view = |address| TensorView::bshd(address, 4 * 32 * 128, DType::F16, shape);
/// let pages = [1000, 16, 8, 128]; // pages, keys of a page, key heads, head_dim
/// let pool = |address| PageView::nhd(address, 1000 * 16 * 8 * 128, DType::F16, pages);
/// let (table, lengths) = (Index::new(table, 4 * 512), Index::new(lengths, 4));
/// let cache = KvCache::paged(KvPages::new(pool(keys), pool(values)), table, columns, lengths);
/// let decode = Decode::new(view(q), cache, view(o));
///
/// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
/// let plan = ferroflash::plan_decode_with(&decode, h200, u64::MAX)?;
/// // What to allocate, once, and give to `Decode::workspace` and, filled with 0, to `Decode::counters`.
/// assert_eq!(plan.workspace_bytes(), 16 * 8 * 4 * 129 * 4);
/// assert_eq!(plan.counters_bytes(), 4 * 8 * 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
#[non_exhaustive]
pub struct Decode<'a> {
    /// Queries.
    pub q: TensorView,
    /// Keys and values, those of the queries' own positions included.
    pub cache: KvCache,
    /// Output. Written whole; overlaps nothing else.
    pub o: TensorView,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Factor of the scores; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// Scores fall with the distance of key and query. Kernels for many queries do it, for few ones too.
    pub alibi: Option<AlibiSlopes>,
    /// Sequences of any numbers of queries, one behind the other; `None` where each has as many, which alone
    /// is decoded.
    pub packed: Option<PackedQueries>,
    /// Logits that belong to no key. Only where there are at most 64 rows (queries times the query heads of a
    /// key head), not packed, and without slopes.
    pub sinks: Option<Sinks>,
    /// Where the log-sum-exp of each row goes.
    pub lse: Option<LseView>,
    /// Memory for what parts of a sequence leave; without it no sequence is cut. How much:
    /// [`plan_decode_with`].
    pub workspace: Option<Workspace>,
    /// Zeros by which the last part of a sequence knows that it is; without them a second kernel merges.
    pub counters: Option<Counters>,
    /// In how many parts sequences are cut.
    pub splits: Splits,
    /// The entry to run instead of the planner's choice.
    pub config: Option<&'a str>,
}

impl<'a> Decode<'a> {
    /// Every query sees every key, with a scale of `1 / sqrt(head_dim)`.
    pub const fn new(q: TensorView, cache: KvCache, o: TensorView) -> Self {
        Decode {
            q,
            cache,
            o,
            mask: Mask::Full,
            scale: None,
            softcap: None,
            alibi: None,
            packed: None,
            sinks: None,
            lse: None,
            workspace: None,
            counters: None,
            splits: Splits::Auto,
            config: None,
        }
    }

    /// Which keys a query sees. With one query, [`Mask::Causal`] is every key.
    pub const fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Factor of the scores, above 0.
    pub const fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Scores become `softcap * tanh(score / softcap)`. 0 turns it off, as in FlashAttention.
    pub const fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = if softcap == 0.0 { None } else { Some(softcap) };
        self
    }

    /// Let scores fall with the distance of key and query, before the mask.
    pub const fn alibi(mut self, slopes: AlibiSlopes) -> Self {
        self.alibi = Some(slopes);
        self
    }

    /// Sequences of any numbers of queries, one behind the other: `q` and `o` are `[1, rows of all sequences,
    /// heads, head_dim]`, and the log-sum-exp is `[1, heads, rows of all sequences]`.
    ///
    /// These are prefilled, in tiles of queries, however few they are: no sequence is cut by its keys, and
    /// there are no sinks and no e4m3 caches. A batch of single queries beside prompts is faster as two
    /// requests: its first `n` sequences as `[n, 1, heads, head_dim]`, which decodes, and the others packed,
    /// `cu_seqlens_q`, table and lengths from number `n` on. Where each sequence has as many queries leave
    /// this out and give `q` as `[batch, queries, heads, head_dim]`, the same memory, which decodes.
    pub const fn packed(mut self, packed: PackedQueries) -> Self {
        self.packed = Some(packed);
        self
    }

    /// Logits that belong to no key: for at most 64 rows (queries times the query heads of a key head), not
    /// packed, and without slopes.
    pub const fn sinks(mut self, sinks: Sinks) -> Self {
        self.sinks = Some(sinks);
        self
    }

    /// Also write the log-sum-exp of each row, sinks included.
    pub const fn lse(mut self, lse: LseView) -> Self {
        self.lse = Some(lse);
        self
    }

    /// Let blocks share a sequence's keys. [`DecodePlan::workspace_bytes`] says how much a plan needs. Ask a
    /// plan made with [`plan_decode_with`]`(.., u64::MAX)`: one made without a workspace needs none, and cuts
    /// no sequence.
    pub const fn workspace(mut self, workspace: Workspace) -> Self {
        self.workspace = Some(workspace);
        self
    }

    /// Let the last block of a sequence merge what the others have left, instead of a second kernel.
    /// [`DecodePlan::counters_bytes`] says how many bytes a plan needs, if it was made as for
    /// [`Decode::workspace`].
    pub const fn counters(mut self, counters: Counters) -> Self {
        self.counters = Some(counters);
        self
    }

    /// In how many parts sequences are cut.
    pub const fn splits(mut self, splits: Splits) -> Self {
        self.splits = splits;
        self
    }

    /// Run this entry instead of the planner's choice.
    pub const fn config(mut self, entry: &'a str) -> Self {
        self.config = Some(entry);
        self
    }

    /// The same as a forward's problem, whose sequences all have as many keys as one may have.
    pub(crate) const fn problem(&self) -> Problem {
        let [mut batch, mut seqlen_q, heads_q, head_dim] = self.q.shape;
        let mut rows = None;
        if let Some(packed) = self.packed {
            rows = Some([seqlen_q, self.cache.max_k]);
            (batch, seqlen_q) = (packed.batch, packed.max_seqlen_q);
        }
        Problem {
            dtype: self.q.dtype,
            batch,
            seqlen_q,
            seqlen_k: self.cache.max_k,
            heads_q,
            heads_k: self.cache.pages.keys.shape[2],
            head_dim,
            mask: self.mask,
            alignment: Alignment::BottomRight,
            scale: self.scale,
            softcap: self.softcap,
            alibi: self.alibi.is_some(),
            packed: rows,
        }
    }

    /// The same with the planner's choice.
    const fn unconfigured(&self) -> Decode<'static> {
        let Decode { q, cache, o, mask, scale, softcap, alibi, packed, sinks, .. } = *self;
        let Decode { lse, workspace, counters, splits, .. } = *self;
        Decode {
            scale,
            softcap,
            alibi,
            packed,
            sinks,
            lse,
            workspace,
            counters,
            splits,
            ..Decode::new(q, cache, o).mask(mask)
        }
    }

    /// The same without what may change between launches of one plan.
    fn shape(&self) -> (Problem, DType, [usize; 3], Option<usize>, Splits) {
        let PageView { dtype, shape: [_, page, heads, head_dim], .. } = self.cache.pages.keys;
        let p = self.problem();
        // However it is spelled.
        let p = Problem { scale: Some(p.softmax_scale()), ..p };
        (p, dtype, [page, heads, head_dim], self.cache.total_k, self.splits)
    }
}

impl Decode<'_> {
    /// What a plan is made for, field by field.
    fn named(&self) -> Vec<(&'static str, String)> {
        let (problem, dtype, page, total_k, splits) = self.shape();
        let mut all = validate::named(&problem);
        for (what, _) in &mut all {
            if let "seqlen_k" | "packed.max_seqlen_k" = *what {
                *what = "cache.max_k";
            }
        }
        // Those of keys are the cache's rows, whose number is that of `max_k`.
        all.retain(|(what, _)| *what != "rows of k");
        all.push(("cache.keys.dtype", dtype.name().to_owned()));
        all.push(("cache.keys.shape", format!("[.., {}, {}, {}]", page[0], page[1], page[2])));
        all.push(("cache.total_k", total_k.map_or("none".to_owned(), |keys| keys.to_string())));
        all.push(("splits", format!("{splits:?}")));
        let pages = if self.cache.tiled() { "dense, or of multiples of 16 keys" } else { "of other sizes" };
        all.push(("cache.paged", pages.to_owned()));
        all
    }
}

/// What a [`Decode`] launches, and why. It can be compared and copied, not edited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodePlan {
    request: Decode<'static>,
    launch: Launch,
    reason: &'static str,
}

/// Checks `decode` and decides how it is launched on a device with these capabilities.
///
/// # Errors
/// [`Error::Invalid`] names the value that is wrong, [`Error::Unsupported`] the feature that this crate or
/// this device has not.
pub fn plan_decode(decode: &Decode<'_>, on: &Capabilities) -> Result<DecodePlan, Error> {
    plan_decode_with(decode, on, 0)
}

/// The same for launches that are offered `workspace` bytes, or those of [`Decode::workspace`] where they are
/// more. With `u64::MAX` the plan is the one that runs fastest, and [`DecodePlan::workspace_bytes`] says what
/// its launches need.
///
/// # Errors
/// Those of [`plan_decode`].
pub fn plan_decode_with(decode: &Decode<'_>, on: &Capabilities, workspace: u64) -> Result<DecodePlan, Error> {
    on.check()?;
    validate::decode::decode(decode)?;
    let offered = decode.workspace.map_or(0, |workspace| workspace.bytes).max(workspace);
    let (launch, reason) = Launch::plan(decode, on, offered)?;
    let plan = DecodePlan { request: decode.unconfigured(), launch, reason };
    plan.suffices(offered, decode.counters)?;
    Ok(plan)
}

impl DecodePlan {
    /// The kernel that computes attention: its symbol, threads and shared memory.
    pub const fn contract(&self) -> &'static Contract {
        self.launch.contract()
    }

    /// Its blocks.
    pub const fn grid(&self) -> [u32; 3] {
        self.launch.grid()
    }

    /// Why this kernel.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// Bytes that a launch uses of [`Decode::workspace`]; 0 where it needs none.
    pub const fn workspace_bytes(&self) -> u64 {
        self.launch.workspace()
    }

    /// Bytes that a launch uses of [`Decode::counters`] where it is given some; 0 where it needs none.
    pub const fn counters_bytes(&self) -> u64 {
        self.launch.counters()
    }

    /// Checks that workspace and counters are as large as launches need.
    fn suffices(&self, workspace: u64, counters: Option<Counters>) -> Result<(), Error> {
        let symbol = self.contract().symbol;
        let check = |what, bytes: u64, needed: u64| {
            let expected = format_args!("{symbol} needs {needed} for this problem on this device");
            if bytes >= needed { Ok(()) } else { Err(Error::invalid(what, bytes, expected)) }
        };
        check("workspace.bytes", workspace, self.launch.workspace())?;
        counters.map_or(Ok(()), |counters| check("counters.bytes", counters.bytes, self.launch.counters()))
    }

    /// The launches for `decode`: the plan's, or the same with other tensors.
    fn bind(&self, decode: &Decode<'_>) -> Result<Launch, Error> {
        if let Some(name) = decode.config.filter(|name| *name != self.contract().symbol) {
            let expected = format_args!("the plan is for {}; make another", self.contract().symbol);
            return Err(Error::invalid("config", name, expected));
        }
        let decode = decode.unconfigured();
        // A plan may have been offered more than its request has.
        let room = decode.workspace.map_or(0, |workspace| workspace.bytes);
        if decode == self.request && room >= self.launch.workspace() {
            return Ok(self.launch);
        }
        validate::decode::decode(&decode)?;
        if decode.shape() != self.request.shape() || decode.cache.tiled() != self.request.cache.tiled() {
            return Err(validate::another(decode.named(), self.request.named()));
        }
        self.suffices(room, decode.counters)?;
        self.launch.bind(&decode)
    }
}

impl Request for Decode<'_> {
    type Plan = DecodePlan;
}

impl sealed::Request<DecodePlan> for Decode<'_> {
    fn plan(&self, on: &Capabilities, _: &Tuning, workspace: u64) -> Result<DecodePlan, Error> {
        plan_decode_with(self, on, workspace)
    }

    fn bind(&self, plan: &DecodePlan) -> Result<impl Kernels, Error> {
        plan.bind(self)
    }
}

impl sealed::Planned for DecodePlan {
    fn launches(&self) -> &impl Kernels {
        &self.launch
    }
}
