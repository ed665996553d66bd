//! One launch of a case.
use super::{Buffers, Case, Front, Tensors};
use crate::inputs::Random;
use crate::work::{GUARD, POISON, guarded, inside};
use ferroflash::driver::Harness;
use ferroflash::request::{
    AttentionRequest, Counters, Index, KvCache, KvPages, LseView, Queries, Scratch, TensorView, VarlenKeys,
    VarlenQueries, Workspace,
};
use ferroflash::spec::MaskMarker;
use ferroflash::variant::Variant;
use ferroflash::{Attention, Error};

/// Keys of a page.
const PAGE: usize = 16;

/// The outputs of a launch.
pub(super) struct Written {
    /// O, `[rows][heads][head_dim]`, as bits.
    pub o: Vec<u16>,
    /// The LSE, `[batch][heads][rows]`.
    pub lse: Vec<f32>,
    /// Number of bytes that were written outside of O and LSE.
    pub strays: usize,
}

/// K and V in the pages of a cache, and the table of pages: `[sequence][columns]`.
struct Paged {
    tensors: [Vec<u16>; 2],
    pages: usize,
    table: Vec<u32>,
    columns: usize,
}

impl Paged {
    /// The rows of K and V in pages, in random order. Rows behind a sequence's end are NaN.
    fn new(case: &Case, Tensors([_, k, v]): &Tensors) -> Self {
        let (columns, row) = (case.max_keys().div_ceil(PAGE).max(1), case.heads[1] * case.head_dim());
        let pages = case.lengths.len() * columns;
        let mut table: Vec<u32> = (0..pages as u32).collect();
        Random::new(case.seed).shuffle(&mut table);
        let tensors = [k, v].map(|tensor| {
            let mut paged = vec![u16::MAX; pages * PAGE * row];
            for (sequence, ([_, start], [_, keys])) in
                case.starts().into_iter().zip(&case.lengths).enumerate()
            {
                for key in 0..*keys {
                    let page = table[sequence * columns + key / PAGE] as usize;
                    let to = (page * PAGE + key % PAGE) * row;
                    paged[to..to + row].copy_from_slice(&tensor[(start + key) * row..][..row]);
                }
            }
            paged
        });
        Paged { tensors, pages, table, columns }
    }
}

fn bytes(tensor: &[u16]) -> Vec<u8> {
    tensor.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

/// Launches the case's kernel, and returns its outputs.
pub(super) fn run<M: MaskMarker, D: Harness>(
    card: &Attention<D>,
    variant: &'static Variant<M>,
    case: &Case,
    tensors: &Tensors,
    params: M::Params,
    buffers: &mut Buffers<'_, D>,
) -> Result<Written, Error> {
    let [batch, rows] = case.q_shape();
    let [heads_q, heads_k] = case.heads;
    let (o_bytes, lse_bytes) = (batch * rows * heads_q * case.head_dim() * 2, batch * heads_q * rows * 4);
    let view = |address, [batch, rows]: [usize; 2], heads| {
        let shape = [batch, rows, heads, case.head_dim()];
        TensorView::bshd(address, shape.iter().product::<usize>() as u64, case.kernel.dtype, shape)
    };
    let q = view(buffers.hold(&bytes(&tensors.0[0]))?, [batch, rows], heads_q);
    let outputs = [o_bytes, lse_bytes].map(|bytes| guarded("", bytes).1);
    let [o_at, lse_at] = [buffers.hold(&outputs[0])?, buffers.hold(&outputs[1])?];
    let o = view(o_at + GUARD as u64, [batch, rows], heads_q);
    let lse = LseView::contiguous(lse_at + GUARD as u64, (lse_bytes / 4) as u64, [batch, heads_q, rows]);

    // Starts of the sequences, and the end of the last one.
    let starts: Vec<_> = case.starts().into_iter().chain([case.rows()]).collect();
    let mut index = |words: Vec<usize>| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| (*word as u32).to_ne_bytes()).collect();
        Ok::<_, Error>(Index::new(buffers.hold(&bytes)?, words.len() as u64))
    };
    let q_starts = index(starts.iter().map(|start| start[0]).collect())?;
    let k_starts = index(starts.iter().map(|start| start[1]).collect())?;
    let lengths = index(case.lengths.iter().map(|lengths| lengths[1]).collect())?;
    let queries = VarlenQueries::new(case.lengths.len(), q_starts, case.max_queries());
    let request = match case.front {
        Front::Dense | Front::Varlen => {
            let shape = match case.front {
                Front::Dense => [batch, case.max_keys()],
                _ => [1, case.rows()[1]],
            };
            let k = view(buffers.hold(&bytes(&tensors.0[1]))?, shape, heads_k);
            let v = view(buffers.hold(&bytes(&tensors.0[2]))?, shape, heads_k);
            match case.front {
                Front::Dense => AttentionRequest::dense(q, k, v, o),
                _ => {
                    AttentionRequest::varlen(q, k, v, o, queries, VarlenKeys::new(k_starts, case.max_keys()))
                }
            }
        }
        Front::Cached | Front::VarlenCached => {
            let Paged { tensors, pages, table, columns } = Paged::new(case, tensors);
            let table = index(table.into_iter().map(|page| page as usize).collect())?;
            let k = view(buffers.hold(&bytes(&tensors[0]))?, [pages, PAGE], heads_k);
            let v = view(buffers.hold(&bytes(&tensors[1]))?, [pages, PAGE], heads_k);
            let cache = KvCache::paged(KvPages::new(k, v), table, columns, lengths);
            let request = AttentionRequest::cached(q, cache, o);
            match case.front {
                Front::Cached => request,
                _ => request.queries(Queries::Varlen(queries)),
            }
        }
    };
    let request = request.lse(lse).variant(variant, params).config(case.kernel.contract.symbol);

    let needs = card.plan(&request.scratch(Scratch::Fastest))?.scratch_bytes();
    let counters = match needs.counters {
        0 => None,
        bytes => Some(Counters { address: buffers.hold(&vec![0; bytes as usize])?, bytes }),
    };
    let scratch = match needs.workspace {
        0 => Scratch::None,
        bytes => {
            let address = buffers.hold(&vec![POISON; bytes as usize])?;
            Scratch::Memory { workspace: Workspace { address, bytes }, counters }
        }
    };
    let request = request.scratch(scratch);
    let (plan, stream) = (card.plan(&request)?, card.driver().stream()?);
    // SAFETY: the buffers have the sizes of their views and live until the launch has run. The variant's
    // parameters name buffers of equal lifetime, and its PTX comes from its types, as its author promises.
    unsafe { card.launch(&plan, &request, &stream)? };
    card.driver().synchronize(&stream)?;

    let written = [(o_at, o_bytes), (lse_at, lse_bytes)]
        .map(|(address, bytes)| buffers.read(address, bytes + 2 * GUARD));
    let [o, lse] = written;
    let (o, lse) = (o?, lse?);
    let is_stray = |byte: &&u8| **byte != POISON;
    let strays = |buffer: &[u8]| {
        buffer[..GUARD].iter().chain(&buffer[buffer.len() - GUARD..]).filter(is_stray).count()
    };
    Ok(Written {
        strays: strays(&o) + strays(&lse),
        o: inside(&o).chunks_exact(2).map(|x| u16::from_ne_bytes([x[0], x[1]])).collect(),
        lse: inside(&lse).chunks_exact(4).map(|x| f32::from_ne_bytes([x[0], x[1], x[2], x[3]])).collect(),
    })
}
