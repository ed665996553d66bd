//! Ranges of keys that see each other regardless of the mask, for example the images of a prompt
//! (`mm_prefix_ranges`).
use crate::attend::Attend;
use crate::errors::{invalid, refused, unsupported};
use crate::gpu::inputs::Read;
use crate::gpu::merge::merge;
use crate::gpu::paged::PagedKv;
use crate::gpu::run::{stored, tensor};
use candle::{DType, Result, Tensor};
use ferroflash::request::Mask;

/// Computes causal attention of varlen queries on a KV cache. A row inside a range of its sequence also sees
/// the later keys of this range.
///
/// The ranges cut each sequence into parts. One launch computes the parts between ranges with a causal mask.
/// A second launch computes the ranges, whose rows see all keys before the range's end. In each launch, the
/// parts of the other launch have no keys. A merge combines the two results exactly. All data stays on the
/// device.
pub(crate) fn with_ranges(
    kv: &PagedKv<'_>,
    q: &Tensor,
    seqlens_q: &Tensor,
    ranges: &Tensor,
    max_seqlen_q: usize,
    attend: &Attend,
) -> Result<Tensor> {
    let (sequences, columns) = kv.block_table.dims2()?;
    let (of, count, two) = ranges.dims3()?;
    if (of, two) != (sequences, 2) {
        let expected = format_args!("it must be [{sequences}, ranges, 2]");
        return Err(invalid("mm_prefix_ranges", format_args!("{:?}", ranges.dims()), expected));
    }
    if let Some(extra) = attend.counts() {
        let reason = "the ranges cut sequences into parts with other queries and keys; use only one of both";
        return Err(unsupported(format_args!("mm_prefix_ranges beside {extra}"), reason));
    }
    match attend.mask::<u64>(kv.max_seqlen_k.unwrap_or(usize::MAX)) {
        Mask::Causal if count > 0 => {}
        // With a full mask, every row already sees the keys of every range.
        Mask::Full | Mask::Causal => return kv.attend_varlen(q, seqlens_q, max_seqlen_q, attend),
        mask => {
            let reason =
                "a row would see two intervals of keys; use a causal mask, or a window that covers all keys";
            return Err(unsupported(format_args!("mm_prefix_ranges beside {mask:?}"), reason));
        }
    }
    let long = |integers: &Tensor| unsigned(integers)?.to_dtype(DType::I64);
    let starts = long(&seqlens_q.narrow(0, 0, sequences)?)?.unsqueeze(1)?;
    let ends = long(&seqlens_q.narrow(0, 1, sequences)?)?.unsqueeze(1)?;
    let keys = long(kv.lengths)?.unsqueeze(1)?;
    // The position of a sequence's first row.
    let first = (&keys - (&ends - &starts)?)?;

    // Begin and end of each range within its sequence's rows. An empty range lies at the sequence's end.
    let bounds = long(ranges)?;
    let none = bounds.narrow(2, 0, 1)?.ge(&bounds.narrow(2, 1, 1)?)?.broadcast_as(bounds.shape())?;
    let end = keys.unsqueeze(2)?.broadcast_as(bounds.shape())?.contiguous()?;
    let bounds = none.contiguous()?.where_cond(&end, &bounds.contiguous()?)?;
    let bounds =
        bounds.reshape((sequences, 2 * count))?.broadcast_maximum(&first)?.broadcast_minimum(&keys)?;
    // Ranges are disjoint, so sorting all bounds keeps each pair together.
    let bounds = bounds.contiguous()?.sort_last_dim(true)?.0;

    let parts = 2 * count + 1;
    let part_ends = Tensor::cat(&[&bounds, &keys], 1)?;
    let rows = part_ends.broadcast_sub(&first)?.broadcast_add(&starts)?.flatten_all()?;
    let cut = Tensor::cat(&[&starts.flatten_all()?.narrow(0, 0, 1)?, &rows], 0)?.to_dtype(DType::U32)?;
    let pairs = bounds.reshape((sequences, count, 2))?;
    let (range_starts, range_ends) = (pairs.narrow(2, 0, 1)?, pairs.narrow(2, 1, 1)?);
    let nothing = range_ends.zeros_like()?;
    let lengths = |pairs: [&Tensor; 2], last: &Tensor| {
        let pairs = Tensor::cat(&pairs, 2)?.reshape((sequences, 2 * count))?;
        Tensor::cat(&[&pairs, last], 1)?.flatten_all()?.to_dtype(DType::U32)
    };
    let between = lengths([&range_starts, &nothing], &keys)?;
    let within = lengths([&nothing, &range_ends], &keys.zeros_like()?)?;
    let table = kv.block_table.unsqueeze(1)?.broadcast_as((sequences, parts, columns))?;
    let table = table.reshape((sequences * parts, columns))?;

    let launch = |lengths: &Tensor, attend: &Attend| {
        let kv = PagedKv { block_table: &table, lengths, shared_prefixes: None, ..*kv };
        kv.attend_varlen_with_lse(q, &cut, max_seqlen_q, attend)
    };
    let causal = launch(&between, attend)?;
    let full = launch(&within, &attend.clone().window(None, None))?;
    Ok(merge((&causal.0, &causal.1), (&full.0, &full.1))?.0)
}

/// Reinterprets u32 or i32 integers as u32.
pub(crate) fn unsigned(integers: &Tensor) -> Result<Tensor> {
    if integers.dtype() != DType::I32 {
        return Ok(integers.clone());
    }
    let integers = integers.contiguous()?;
    let read = Read::of("integers", &integers);
    let (storage, layout) = read.stored()?;
    let (all, first) = (storage.as_cuda_slice::<i32>()?, layout.start_offset());
    let some = all.slice(first..first + layout.shape().elem_count());
    let copy = storage.device.cuda_stream().clone_dtod(&ferroflash::cudarc::unsigned(&some));
    Ok(tensor(stored(copy.map_err(refused)?, &storage.device), layout.shape()))
}
