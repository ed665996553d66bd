//! The append family: one kernel, which needs nothing but its tensors.
use super::{One, cache, forward::tensor, place};
use crate::{Append, Capabilities, Error};
use spec::{APPEND_COLUMNS, APPENDS, AppendParams, FastDiv, KERNELS, RowParts, Slots, Target};

/// The launch of an append kernel.
pub(crate) type Launch = One<AppendParams>;

/// The first kernel that puts such tokens into such a cache and runs on the device, by its place in
/// [`KERNELS`], and why it was chosen.
pub(crate) fn choose(append: &Append, on: &Capabilities) -> Result<(usize, &'static str), Error> {
    let types = [append.k.dtype, append.pages.keys.dtype];
    let rounds = (types[0] != types[1]).then_some(types);
    let mut refusal = None;
    for kernel in APPENDS.iter().filter(|kernel| kernel.rounds == rounds) {
        match on.runs(&kernel.contract) {
            Ok(()) => {
                let reason = match (rounds, kernel.contract.target) {
                    (None, _) => "tokens have the cache's type: their bytes are copied",
                    (Some(_), Target::From(80)) => "integer arithmetic rounds, on every device",
                    (Some(_), _) => "the device has an instruction that rounds",
                };
                return Ok((place(&kernel.contract), reason));
            }
            Err(error) => refusal = Some(error),
        }
    }
    let [tokens, cache] = types.map(|dtype| dtype.name());
    let nothing = || Error::unsupported(format_args!("{tokens} tokens and an {cache} cache"), "no kernel");
    Err(refusal.unwrap_or_else(nothing))
}

/// The launch of a kernel for tensors that have been checked.
///
/// # Errors
/// [`Error::Unsupported`] where there are too many tokens or columns for one launch.
pub(crate) fn launch(kernel: usize, append: &Append) -> Result<Launch, Error> {
    let Append { k, v, pages, slots } = append;
    let [_, _, heads, head_dim] = k.shape;
    let rows = (slots.elements as usize).checked_mul(heads);
    let parts = rows
        .and_then(|rows| RowParts::new(rows, head_dim / APPEND_COLUMNS, KERNELS[kernel].threads))
        .zip(FastDiv::new(heads as u32));
    let Some((parts, heads)) = parts else {
        let feature = format_args!("{} tokens of {heads} heads of {head_dim} columns", slots.elements);
        let reason = "a launch has less than 2^31 parts of 8 columns, a head at most 2048 columns";
        return Err(Error::unsupported(feature, reason));
    };
    let params = AppendParams {
        k: tensor(k),
        v: tensor(v),
        cache: cache::pages(pages),
        slots: Slots { base: slots.address, count: slots.elements as u32, wide: u32::from(slots.wide) },
        scales: [0, 1].map(|i| cache::scale(&pages.scales[i])),
        parts,
        heads,
        reserved: 0,
    };
    Ok(One { kernel, grid: [parts.blocks(), 1, 1], params })
}
