//! Launches of a caller's kernels in the simulator, on tensors and caches, and attention in f64 by a
//! definition of the mask.
use cuda_builder::{CudaBuilder, Module};
use ferroflash::driver::{Harness, SimDriver};
use ferroflash::request::{
    AttentionRequest, Index, KvCache, KvPages, LseView, Scratch, TensorView, VarlenKeys, VarlenQueries,
};
use ferroflash::spec::{AttnKernel, Integers, MaskMarker};
use ferroflash::variant::{Variant, VariantKernel};
use ferroflash::{Attention, DType, Error};
use half::f16;
use own_kernels::block_sparse::*;
use ptx_sim::Options;
use std::path::Path;
use std::sync::LazyLock;

pub type Card = Attention<SimDriver>;
pub type Buffer = <SimDriver as Harness>::Buffer;
/// Queries and keys of a sequence.
pub type Seq = [usize; 2];

pub const HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const ROW: usize = HEADS * HEAD_DIM;

/// O: two roundings to f16 of numbers up to 1. LSE: one rounding, of the weights.
pub const BOUNDS: [f64; 2] = [1e-3, 5e-4];

/// The kernels of `own_kernels::block_sparse`.
static MODULES: LazyLock<Vec<Module>> = LazyLock::new(|| {
    let contracts = [
        documents::CONTRACT,
        sparse_documents::CONTRACT,
        sparse_documents_varlen::CONTRACT,
        sparse_documents_paged::CONTRACT,
        sparse_window::CONTRACT,
        sparse_neighbours::CONTRACT,
        sparse_full::CONTRACT,
        sparse_full_shared::CONTRACT,
        sparse_full_one_stage::CONTRACT,
        sparse_full_split::CONTRACT,
        create_documents::CONTRACT,
        create_window::CONTRACT,
        create_neighbours::CONTRACT,
        create_local::CONTRACT,
        sparse_full_hopper::CONTRACT,
        sparse_full_hopper_wide::CONTRACT,
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("own-kernels");
    CudaBuilder::new(folder).entries(contracts).build().expect("the kernels compile").modules
});

pub fn module(symbol: &str) -> &'static Module {
    MODULES.iter().find(|module| module.contract.symbol == symbol).expect("an entry")
}

/// A variant of one kernel, whose code is `text`.
pub fn variant_of<K: AttnKernel>(symbol: &'static str, text: &str) -> &'static Variant<K::Mask>
where
    K::Mask: 'static,
{
    let kernels = vec![VariantKernel::new::<K>(symbol, String::from(text).leak())];
    Box::leak(Box::new(Variant::new(symbol, kernels.leak())))
}

/// A variant of one kernel.
pub fn variant<K: AttnKernel>(symbol: &'static str) -> &'static Variant<K::Mask>
where
    K::Mask: 'static,
{
    variant_of::<K>(symbol, &module(symbol).text)
}

/// A card that runs the kernel `symbol`.
pub fn card_for(symbol: &str, options: Options) -> Card {
    let name = if symbol.contains("hopper") { "h200" } else { "l4" };
    Attention::new(SimDriver::with_options(name, options).expect("a card"))
}

pub fn card(options: Options) -> Card {
    card_for("", options)
}

pub fn upload(card: &Card, bytes: &[u8]) -> (Buffer, u64) {
    let mut buffer = card.driver().allocate(bytes.len()).expect("memory");
    card.driver().upload(&mut buffer, bytes).expect("its size");
    let address = card.driver().address(&buffer);
    (buffer, address)
}

/// 32-bit words in device memory. The buffer must live as long as launches read it.
pub fn words(card: &Card, words: &[u32]) -> (Buffer, Integers) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    // An allocation must have at least one byte, even if the list is empty.
    let (buffer, base) = upload(card, if bytes.is_empty() { &[0; 4] } else { &bytes });
    (buffer, Integers { base, count: words.len() as u32, reserved: 0 })
}

/// The tensors' layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Front {
    Dense,
    Varlen,
    Cached,
}

/// Numbers between -1 and 1 that look random.
fn numbers(seed: u32, count: usize) -> Vec<f16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

/// O `[row of all sequences][head][column]`, the LSE `[row][head]`, and the inputs.
pub struct Made {
    pub o: Vec<f64>,
    pub lse: Vec<f32>,
    inputs: [Vec<f16>; 3],
    /// The sequences' first rows of Q and of K.
    starts: [Vec<usize>; 2],
}

/// Launches a variant. Dense sequences have equal lengths, and queries on a cache have.
///
/// # Errors
/// Returns the errors of planning and launching, with the simulator's reports.
pub fn attend<M: MaskMarker>(
    card: &Card,
    front: Front,
    lengths: &[Seq],
    variant: &'static Variant<M>,
    params: M::Params,
) -> Result<Made, Error> {
    let longest = |of: usize| lengths.iter().map(|each| each[of]).max().unwrap_or(0);
    let starts = [0, 1].map(|of| {
        let mut starts = vec![0];
        for each in lengths {
            let rows = if front == Front::Cached && of == 1 { longest(1) } else { each[of] };
            starts.push(starts[starts.len() - 1] + rows);
        }
        starts
    });
    let rows = [0, 1].map(|of| starts[of][lengths.len()]);
    let inputs = [(1, rows[0]), (2, rows[1]), (3, rows[1])].map(|(seed, rows)| numbers(seed, rows * ROW));
    let on_card = inputs
        .each_ref()
        .map(|tensor| upload(card, &tensor.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()));
    let (o_buffer, o_at) = upload(card, &vec![0xff; rows[0] * ROW * 2]);
    let (lse_buffer, lse_at) = upload(card, &vec![0xff; rows[0] * HEADS * 4]);
    let integers = |list: &[usize]| words(card, &list.iter().map(|x| *x as u32).collect::<Vec<_>>());
    let [(_q, cu_seqlens_q), (_k, cu_seqlens_k)] = starts.each_ref().map(|starts| integers(starts));
    let (_keys, keys) = integers(&lengths.iter().map(|each| each[1]).collect::<Vec<_>>());

    let (batch, [queries, max_k]) = (lengths.len(), [longest(0), longest(1)]);
    let shapes = match front {
        Front::Varlen => [[1, rows[0]], [1, rows[1]]],
        _ => [[batch, queries], [batch, max_k]],
    };
    let view = |address, [batch, rows]: [usize; 2]| {
        TensorView::bshd(address, (batch * rows * ROW) as u64, DType::F16, [batch, rows, HEADS, HEAD_DIM])
    };
    let [q, o] = [on_card[0].1, o_at].map(|at| view(at, shapes[0]));
    let [k, v] = [on_card[1].1, on_card[2].1].map(|at| view(at, shapes[1]));
    let index = |of: Integers| Index::new(of.base, of.count.into());
    let request = match front {
        Front::Dense => AttentionRequest::dense(q, k, v, o),
        Front::Varlen => {
            let queries = VarlenQueries::new(batch, index(cu_seqlens_q), queries);
            AttentionRequest::varlen(q, k, v, o, queries, VarlenKeys::new(index(cu_seqlens_k), max_k))
        }
        Front::Cached => AttentionRequest::cached(q, KvCache::dense(KvPages::new(k, v), index(keys)), o),
    };
    let shape = [shapes[0][0], HEADS, shapes[0][1]];
    let lse_view = LseView::contiguous(lse_at, (rows[0] * HEADS) as u64, shape);
    let request = request.lse(lse_view).variant(variant, params);
    let (_workspace, workspace) = upload(card, &vec![0xff; 4 << 20]);
    let symbol = variant.any().kernels().next().expect("a kernel").contract.symbol;
    let request = request.scratch(Scratch::workspace(workspace, 4 << 20)).config(symbol);

    let (plan, stream) = (card.plan(&request)?, card.driver().stream()?);
    // SAFETY: the buffers are as large as their views say and live until the launch has run, and the
    // kernels' PTX was compiled from their types.
    unsafe { card.launch(&plan, &request, &stream)? };
    if let Err(error) = card.driver().synchronize(&stream) {
        let reports: Vec<_> = card.driver().take_reports().iter().map(ToString::to_string).collect();
        return Err(Error::driver("simulated launch", None, format!("{error}: {}", reports.join("\n"))));
    }
    let mut bytes = vec![0; rows[0] * ROW * 2];
    card.driver().download(&o_buffer, &mut bytes)?;
    let o = bytes.chunks_exact(2).map(|x| f16::from_le_bytes([x[0], x[1]]).to_f64()).collect();
    let mut bytes = vec![0; rows[0] * HEADS * 4];
    card.driver().download(&lse_buffer, &mut bytes)?;
    let read = |at: usize| f32::from_le_bytes(bytes[at * 4..][..4].try_into().expect("four bytes"));
    let row_of = |row: usize, head: usize| match front {
        Front::Varlen => head * rows[0] + row,
        _ => (row / queries * HEADS + head) * queries + row % queries,
    };
    let lse = (0..rows[0] * HEADS).map(|at| read(row_of(at / HEADS, at % HEADS))).collect();
    Ok(Made { o, lse, inputs, starts })
}

impl Made {
    /// The bits of all results.
    pub fn bits(&self) -> Vec<u32> {
        let o = self.o.iter().map(|x| (*x as f32).to_bits());
        o.chain(self.lse.iter().map(|x| x.to_bits())).collect()
    }

    /// The largest errors of O and of the LSE, compared with attention in f64. In this attention, the query
    /// at position `p` of a sequence and head sees key `k` if `sees(sequence, head, p, k)` is true. NaN is an
    /// infinite error.
    pub fn off(&self, lengths: &[Seq], sees: &dyn Fn(usize, usize, i32, i32) -> bool) -> [f64; 2] {
        let [q, k, v] = self.inputs.each_ref().map(|x| x.iter().map(|x| x.to_f64()).collect::<Vec<_>>());
        let mut worst = [0.0; 2];
        let mut note = |of: usize, is: f64, should: f64| {
            let error = if is == should { 0.0 } else { (is - should).abs() };
            worst[of] = f64::max(worst[of], if error.is_nan() { f64::INFINITY } else { error });
        };
        for (sequence, &[queries, keys]) in lengths.iter().enumerate() {
            for (head, query) in (0..HEADS).flat_map(|head| (0..queries).map(move |query| (head, query))) {
                let row = self.starts[0][sequence] + query;
                let at = |row: usize| (row * HEADS + head) * HEAD_DIM;
                let key_at = |key: usize| at(self.starts[1][sequence] + key);
                let p = (query + keys) as i32 - queries as i32;
                let seen: Vec<_> = (0..keys).filter(|key| sees(sequence, head, p, *key as i32)).collect();
                let score = |key: &usize| {
                    let (q, k) = (&q[at(row)..][..HEAD_DIM], &k[key_at(*key)..][..HEAD_DIM]);
                    q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() / (HEAD_DIM as f64).sqrt()
                };
                let weights: Vec<_> = seen.iter().map(|key| score(key).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..HEAD_DIM {
                    let dot: f64 = seen.iter().zip(&weights).map(|(key, w)| w * v[key_at(*key) + d]).sum();
                    note(0, self.o[at(row) + d], if seen.is_empty() { 0.0 } else { dot / sum });
                }
                note(1, self.lse[row * HEADS + head].into(), sum.ln());
            }
        }
        worst
    }
}
