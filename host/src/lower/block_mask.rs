//! Checks that the block mask in a variant's parameters fits the kernel and the request.
use crate::{AttnInfo, Error, Problem};
use spec::BlockMask;

/// Checks sizes and addresses of a block mask. The lists of the block mask are in device memory. Kernels
/// clamp the integers in the lists.
///
/// # Errors
/// [`Error::Invalid`] names the difference.
pub(super) fn check(mask: &BlockMask, kernel: &AttnInfo, p: &Problem) -> Result<(), Error> {
    let BlockMask { tiles, blocks, shape: [sequences, heads, m_blocks, n_blocks], tile } = *mask;
    let of_kernel = [kernel.tile_m, kernel.tile_n];
    if tile != of_kernel {
        let expected = format_args!(
            "{} has tiles of {} queries and {} keys; make the lists for these, or plan again for these lists",
            kernel.contract.symbol, of_kernel[0], of_kernel[1]
        );
        return Err(Error::invalid("block_mask.tile", format_args!("{} x {}", tile[0], tile[1]), expected));
    }
    for (what, lists, count, all) in [
        ("block_mask.sequences", sequences, p.batch, "sequences"),
        ("block_mask.heads", heads, p.heads_q, "query heads"),
    ] {
        if lists != 1 && lists as usize != count {
            let expected = format_args!("the request has {count} {all}: {count}, or 1 for shared lists");
            return Err(Error::invalid(what, lists, expected));
        }
    }
    if sequences == 1 && p.batch > 1 && (p.varlen.is_some() || p.cache.is_some()) {
        let expected = format_args!(
            "sequences of varlen tensors and KV caches differ in length: make the lists of each of the {}",
            p.batch
        );
        return Err(Error::invalid("block_mask.sequences", sequences, expected));
    }
    let expected = p.seqlen_q.div_ceil(tile[0] as usize);
    if m_blocks as usize != expected {
        let expected = format_args!(
            "the request has up to {} queries per sequence, which are {expected} tiles of {}",
            p.seqlen_q, tile[0]
        );
        return Err(Error::invalid("block_mask.tiles", m_blocks, expected));
    }
    let expected = p.seqlen_k.div_ceil(tile[1] as usize);
    // A KV cache may have room for more keys than its sequences have.
    if n_blocks as usize > expected || p.cache.is_none() && (n_blocks as usize) < expected {
        let expected = format_args!(
            "the request has up to {} keys per sequence, which are {expected} blocks of {}",
            p.seqlen_k, tile[1]
        );
        return Err(Error::invalid("block_mask.blocks", n_blocks, expected));
    }
    let room = [sequences, heads, m_blocks, 4].iter().map(|n| u64::from(*n)).try_fold(1, u64::checked_mul);
    if room.is_none_or(|room| room >= 1 << 31 || u64::from(tiles.count) < room) {
        let expected = format_args!(
            "it must have four integers for each of {sequences} x {heads} x {m_blocks} tiles, less than 2^31"
        );
        return Err(Error::invalid("block_mask.tiles", format_args!("{} integers", tiles.count), expected));
    }
    for (what, integers) in [("block_mask.tiles", tiles), ("block_mask.blocks", blocks)] {
        let is_absent = integers.base == 0 && integers.count > 0;
        if is_absent || !integers.base.is_multiple_of(4) {
            let expected = "it must be the device address of 32-bit integers, a multiple of 4";
            return Err(Error::invalid(what, format_args!("{:#x}", integers.base), expected));
        }
    }
    Ok(())
}
