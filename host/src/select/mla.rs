//! Selection of MLA decode kernels: few queries on a latent cache.
use super::{ASKED, Choice};
use crate::schedule::row_blocks;
use crate::{AttnInfo, Capabilities, Error, Problem};
use core::cmp::Reverse;
use spec::MLAS;

const FEW: &str = "a latent cache, read once for keys and values: the smallest block that holds all rows of \
                   a latent head";
const MANY: &str = "a latent cache, read once for keys and values: more rows than a block of this device \
                    holds, so that several blocks read the same keys";

/// Returns whether the entry solves the problem.
fn solves(e: &AttnInfo, p: &Problem) -> bool {
    e.dtype == p.dtype && e.takes_columns(p.columns())
}

/// Returns the named entry, or the best one. The best entry has the fewest thread blocks, then the fewest
/// rows, then the most stages. The choice does not depend on the batch, so chunks are batch-invariant.
///
/// # Errors
/// Returns [`Error::Unsupported`] if no kernel solves the problem on this device, or [`Error::Invalid`] if
/// the named kernel does not solve it.
pub(super) fn choose(p: &Problem, on: &Capabilities, config: Option<&str>) -> Result<Choice, Error> {
    if let Some(name) = config {
        let entry = MLAS.iter().find(|e| e.contract.symbol == name && solves(e, p));
        let entry = entry.ok_or_else(|| {
            let expected = format_args!(
                "it must be a kernel for latent caches of {}: `ferroflash kernels --family mla`",
                p.dtype.name()
            );
            Error::invalid("config", name, expected)
        })?;
        return on.runs(&entry.contract).and(Ok(Choice::new(entry, ASKED)));
    }
    let size = |e: &&AttnInfo| (row_blocks(e, p), e.tile_m, Reverse(e.stages));
    let fitting = MLAS.iter().filter(|e| solves(e, p));
    let runs = |e: &&AttnInfo| on.runs(&e.contract).is_ok();
    let Some(entry) = fitting.clone().filter(runs).min_by_key(size).or_else(|| fitting.min_by_key(size))
    else {
        return Err(Error::unsupported(
            format_args!("{p} on a latent cache"),
            "no kernel has these numbers of columns",
        ));
    };
    on.runs(&entry.contract)?;
    Ok(Choice::new(entry, if row_blocks(entry, p) == 1 { FEW } else { MANY }))
}
