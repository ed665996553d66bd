//! Checks of batch-invariant problems.
use crate::request::{Invariance, Splits};
use crate::{Error, Problem};
use spec::{MAX_SEQUENCES, Precision};

/// The rows of a block of an MLA decode kernel. The rows of a block share the moments at which they rescale,
/// so a block must not hold rows of several queries.
const LATENT_ROWS: usize = 16;

/// Refuses batch-invariant problems for which no kernel keeps the promise.
pub(super) fn invariance(p: &Problem) -> Result<(), Error> {
    let group = p.heads_q / p.heads_k;
    let (chunks, latent) = match p.invariance {
        Invariance::None => return Ok(()),
        of => (of == Invariance::BatchAndChunks, p.latent().is_some()),
    };
    let refused = |feature: String, remedy: &str| {
        Err(Error::unsupported(format_args!("{feature} with invariance {:?}", p.invariance), remedy))
    };
    if p.precision != Precision::Inputs {
        let (tensors, remedy) = match p.is_eight_bit() {
            true => (" of e4m3 tensors", "convert q, k and v to f16 or bf16"),
            false => ("", "leave precision out"),
        };
        let remedy = format!("no test compares its bits in other batches; {remedy}");
        return refused(format!("precision {}{tensors}", p.precision.name()), &remedy);
    }
    match p.splits {
        Splits::Auto | Splits::Exactly(1) => {}
        Splits::Keys(_) if latent || !chunks => {}
        splits => {
            let remedy =
                if chunks { "leave splits out" } else { "leave splits out, or give the keys of a split" };
            return refused(format!("{splits:?}"), remedy);
        }
    }
    if p.cache.is_some() && p.batch > MAX_SEQUENCES as usize {
        let remedy = format!("decode kernels take at most {MAX_SEQUENCES} sequences; split the batch");
        return refused(format!("batch {} on a KV cache", p.batch), &remedy);
    }
    let is_listed = p.cache.is_some_and(|cache| cache.listed);
    if chunks && latent && !is_listed && !group.is_multiple_of(LATENT_ROWS) {
        let remedy = format!(
            "a block of {LATENT_ROWS} rows would hold several queries; use a multiple of {LATENT_ROWS} query \
             heads (with zeros for the missing ones), or the invariance `Batch`"
        );
        return refused(format!("{group} query heads per latent head"), &remedy);
    }
    Ok(())
}
