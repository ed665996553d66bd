//! Checks of requests with padded queries, whose sequences a kernel divides into used queries and padding.
use crate::Error;
use crate::request::{AttentionRequest, KeysValues, KvScale, Mask, Paged, Prefix, Queries};

/// Checks that attention kernels can take the divided sequences. They find everything of a sequence by its
/// index, so the request may have only lengths and pages of each sequence.
///
/// # Errors
/// Returns [`Error::Unsupported`], which names the part of the request.
pub(super) fn divides(r: &AttentionRequest<'_>) -> Result<(), Error> {
    let Queries::Varlen(queries) = &r.queries else { return Ok(()) };
    let of_each = |what: &str, remedy: &str| {
        let reason = format_args!("padding is divided off as sequences of its own; {remedy}");
        Err(Error::unsupported(format_args!("seqused_q with {what}"), reason))
    };
    if queries.batch >= 1 << 29 {
        return of_each("2^29 sequences or more", "split the batch");
    }
    if r.scores.alibi.as_ref().is_some_and(|slopes| slopes.strides[0] != 0) {
        return of_each("slopes of each sequence", "give all sequences the same slopes");
    }
    if r.scores.bias.as_ref().is_some_and(|bias| bias.shape[0] > 1) {
        return of_each("a bias of each sequence", "give all sequences the same bias");
    }
    if r.variant.is_some() {
        return of_each(
            "a variant",
            "make padding a sequence without keys (docs/limits.md, \"Padded queries\")",
        );
    }
    match r.mask {
        Mask::Prefix(Prefix::Each(_)) => return of_each("a prefix of each sequence", "use one prefix"),
        Mask::Bits(bits) if bits.shape[0] > 1 => {
            return of_each("mask bits of each sequence", "give all sequences the same bits");
        }
        _ => {}
    }
    let is_of_each = |scale: &KvScale| matches!(scale, KvScale::Device { strides, .. } if strides[0] != 0);
    if r.descales.all().into_iter().any(is_of_each) {
        return of_each("scales of each sequence", "give all sequences the same scales");
    }
    let KeysValues::Cache(kv) = &r.kv else { return Ok(()) };
    if kv.pages.scales.iter().any(is_of_each) {
        return of_each("scales of each sequence", "give all sequences the same scales");
    }
    match kv.paged {
        Paged::Table { stride, .. } if queries.batch > 1 && !stride.is_multiple_of(2) => {
            let expected = "with seqused_q, rows of the block table must be an even number of entries apart; \
                            copy the table into rows of one entry more";
            Err(Error::invalid("cache.table", format_args!("rows {stride} entries apart"), expected))
        }
        _ => Ok(()),
    }
}
