//! Decode cases on a device.
use super::{DecodeMemory, POISON, Pages, SCALES};
use ferroflash::{
    Attention, Counters, DType, Decode, DecodePlan, Driver, Error, Index, KvCache, KvPages, KvScale, LseView,
    PackedQueries, Sinks, TensorView, Workspace,
};

/// What came back from a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeOutcome {
    o: Vec<u16>,
    lse: Vec<u32>,
    lses: Vec<f32>,
    counters: Vec<u32>,
    /// First row of each sequence.
    starts: Vec<usize>,
    /// Elements that are nobody's and were written.
    strays: usize,
}

impl DecodeOutcome {
    /// O of sequence `b`, `[queries][heads][head_dim]`.
    pub fn o(&self, b: usize) -> &[u16] {
        part(&self.o, &self.starts, b)
    }

    /// LSE of sequence `b`, `[heads][queries]`.
    pub fn lse(&self, b: usize) -> &[f32] {
        part(&self.lses, &self.starts, b)
    }

    /// Counters, which should be 0 again.
    pub fn counters(&self) -> &[u32] {
        &self.counters
    }

    /// Both of sequence `b`, bit by bit.
    pub fn bits(&self, b: usize) -> (&[u16], &[u32]) {
        (self.o(b), part(&self.lse, &self.starts, b))
    }

    /// Elements that are nobody's and were written.
    pub fn strays(&self) -> usize {
        self.strays
    }
}

/// What of all rows is sequence `b`'s.
fn part<'o, T>(all: &'o [T], starts: &[usize], b: usize) -> &'o [T] {
    let each = all.len() / starts.last().copied().unwrap_or(1).max(1);
    &all[starts[b] * each..starts[b + 1] * each]
}

/// A case in device memory.
pub struct LoadedDecode<'a, D: Driver> {
    attention: &'a Attention<D>,
    memory: &'a DecodeMemory,
    config: Option<&'a str>,
    q: D::Buffer,
    sinks: D::Buffer,
    scales: D::Buffer,
    pool: Vec<D::Buffer>,
    table: D::Buffer,
    lengths: D::Buffer,
    starts: D::Buffer,
    workspace: Option<(D::Buffer, u64)>,
    counters: Option<(D::Buffer, u64)>,
    stream: D::Stream,
}

/// The bytes of numbers.
macro_rules! bytes {
    ($numbers:expr) => {
        $numbers.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>()
    };
}

impl<'a, D: Driver> LoadedDecode<'a, D> {
    /// Copies the inputs to the device. `config` names the entry to run, or leaves it to the planner.
    ///
    /// # Errors
    /// Those of planning, and the driver's.
    pub fn new(
        attention: &'a Attention<D>,
        memory: &'a DecodeMemory,
        config: Option<&'a str>,
    ) -> Result<Self, Error> {
        let driver = attention.driver();
        let upload = |name: &str, bytes: Vec<u8>| {
            let mut buffer = driver.allocate_named(name, bytes.len())?;
            driver.upload(&mut buffer, &bytes)?;
            Ok::<_, Error>(buffer)
        };
        let batch = memory.case.filled.len();
        let starts: Vec<i32> = memory.case.starts().iter().map(|start| *start as i32).collect();
        let mut loaded = LoadedDecode {
            config,
            q: upload("q", bytes!(memory.q))?,
            sinks: upload("sinks", bytes!(memory.sinks))?,
            scales: upload("k_scale", bytes!(vec![SCALES[0]; memory.case.heads[1]]))?,
            pool: memory.pool.iter().map(|bytes| upload("cache", bytes.clone())).collect::<Result<_, _>>()?,
            table: upload("table", bytes!(memory.table))?,
            lengths: upload("lengths", vec![0; batch * 4])?,
            starts: upload("cu_seqlens_q", bytes!(starts))?,
            workspace: None,
            counters: None,
            stream: driver.stream()?,
            attention,
            memory,
        };
        // Addresses that no buffer has.
        let plan = attention.plan_with(&loaded.decode(1 << 60, 1 << 61), u64::MAX)?;
        if plan.workspace_bytes() > 0 {
            let bytes = plan.workspace_bytes();
            loaded.workspace = Some((driver.allocate_named("workspace", bytes as usize)?, bytes));
        }
        if memory.case.counters && plan.counters_bytes() > 0 {
            let bytes = plan.counters_bytes();
            loaded.counters = Some((upload("counters", vec![0; bytes as usize])?, bytes));
        }
        Ok(loaded)
    }

    fn decode(&self, o: u64, lse: u64) -> Decode<'a> {
        let (driver, case) = (self.attention.driver(), &self.memory.case);
        let batch = case.filled.len();
        let address = |buffer: &D::Buffer| driver.address(buffer);
        let pool: Vec<u64> = self.pool.iter().map(address).collect();
        let [keys, values] = self.memory.views(&pool);
        let mut pages = KvPages::new(keys, values);
        if case.cache == DType::E4m3 {
            // Those of keys are in device memory, one a head, the values' is a number.
            let elements = case.heads[1] as u64;
            let k = KvScale::Device { address: address(&self.scales), elements, strides: [0, 1] };
            pages = pages.scales(k, KvScale::Value(SCALES[1]));
        }
        let lengths = Index::new(address(&self.lengths), batch as u64);
        let table = Index::new(address(&self.table), self.memory.table.len() as u64);
        let cache = match case.pages {
            Pages::Dense => KvCache::dense(pages, lengths),
            Pages::Rows => KvCache::dense(pages, lengths).rows(table),
            _ => KvCache::paged(pages, table, self.memory.columns, lengths),
        };
        let [batches, queries] = case.packed.as_ref().map_or([batch, case.queries], |_| [1, case.q_rows()]);
        let shape = [batches, queries, case.heads[0], case.head_dim];
        let elements = shape.iter().product::<usize>() as u64;
        let [q, o] = [address(&self.q), o].map(|at| TensorView::bshd(at, elements, case.dtype, shape));
        let rows = [batches, case.heads[0], queries];
        let lse = LseView::contiguous(lse, rows.iter().product::<usize>() as u64, rows);
        let mut decode =
            Decode::new(q, cache.max_k(case.max_k), o).mask(case.mask).splits(case.splits).lse(lse);
        (decode.softcap, decode.config) = (case.softcap, self.config);
        decode.packed = case.packed.as_ref().map(|queries| {
            let most = queries.iter().max().copied().unwrap_or(1).max(1);
            PackedQueries::new(batch, Index::new(address(&self.starts), batch as u64 + 1), most)
        });
        if case.sinks {
            let elements = self.memory.sinks.len() as u64;
            decode.sinks = Some(Sinks { address: address(&self.sinks), elements });
        }
        let workspace = self.workspace.as_ref();
        decode.workspace = workspace.map(|(b, bytes)| Workspace { address: address(b), bytes: *bytes });
        let counters = self.counters.as_ref();
        decode.counters = counters.map(|(b, bytes)| Counters { address: address(b), bytes: *bytes });
        decode
    }

    /// Tells the device of other sequences than the case's, in the same rows.
    ///
    /// # Errors
    /// The driver's.
    pub fn start(&mut self, cu_seqlens_q: &[i32]) -> Result<(), Error> {
        self.attention.driver().upload(&mut self.starts, &bytes!(cu_seqlens_q))
    }

    /// Launches a plan, one of its own where there is none yet, on sequences of these lengths.
    ///
    /// # Errors
    /// Those of planning, launching and waiting.
    pub fn run(
        &mut self,
        plan: Option<&DecodePlan>,
        lengths: &[i32],
    ) -> Result<(DecodePlan, DecodeOutcome), Error> {
        let (driver, case) = (self.attention.driver(), &self.memory.case);
        driver.upload(&mut self.lengths, &bytes!(lengths))?;
        let rows = case.q_rows() * case.heads[0];
        let sizes = [("o", rows * case.head_dim * 2), ("lse", rows * 4)];
        let [mut o, mut lse] = sizes.map(|(name, bytes)| driver.allocate_named(name, bytes));
        for buffer in [&mut o, &mut lse] {
            buffer.as_mut().map_or(Ok(()), |buffer| driver.fill(buffer, POISON))?;
        }
        let (o, lse) = (o?, lse?);
        let decode = self.decode(driver.address(&o), driver.address(&lse));
        let plan = plan.map_or_else(|| self.attention.plan(&decode), |plan| Ok(*plan))?;
        // SAFETY: every view is of a buffer of this driver that is as large as the view says and is freed
        // only after a wait; outputs are this launch's own, and nobody writes the inputs.
        unsafe { self.attention.launch(&plan, &decode, &self.stream)? };
        driver.synchronize(&self.stream)?;
        let download = |buffer: &D::Buffer, bytes: usize| {
            let mut to = vec![0; bytes];
            driver.download(buffer, &mut to).map(|()| to)
        };
        let words = |bytes: Vec<u8>| {
            let words = bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
            words.collect::<Vec<_>>()
        };
        let bits = download(&o, sizes[0].1)?;
        let lse = words(download(&lse, sizes[1].1)?);
        let counters = self.counters.as_ref().map(|(b, bytes)| download(b, *bytes as usize)).transpose()?;
        let mut o: Vec<u16> = bits.chunks_exact(2).map(|b| u16::from_ne_bytes([b[0], b[1]])).collect();
        let (starts, [heads, _]) = (case.starts(), case.heads);
        let (own, all) = (starts[case.filled.len()], case.q_rows());
        let mut strays = o.split_off(own * heads * case.head_dim);
        strays.retain(|x| *x != u16::from_ne_bytes([POISON; 2]));
        let mut strays = strays.len();
        let lse = if case.packed.is_some() {
            let tails = lse.chunks(all).flat_map(|head| &head[own..]);
            strays += tails.filter(|x| **x != u32::from_ne_bytes([POISON; 4])).count();
            let sequences =
                starts.windows(2).flat_map(|rows| lse.chunks(all).map(|head| &head[rows[0]..rows[1]]));
            sequences.flatten().copied().collect()
        } else {
            lse
        };
        let outcome = DecodeOutcome {
            o,
            strays,
            starts,
            lses: lse.iter().map(|x| f32::from_bits(*x)).collect(),
            lse,
            counters: words(counters.unwrap_or_default()),
        };
        Ok((plan, outcome))
    }
}
