//! Writes a launch contract into PTX: rustc has no attributes for it.

use crate::{Contract, Error};

/// The directives of `contract`, as they stand between an entry's parameters and its body.
///
/// # Errors
/// [`Error::Threads`] if no block can have that many threads.
pub fn directives(contract: &Contract) -> Result<String, Error> {
    let Contract { symbol, threads, min_blocks_per_sm, .. } = contract;
    if !(1..=1024).contains(threads) {
        return Err(Error::Threads { symbol: (*symbol).to_owned(), threads: *threads });
    }
    let mut text = format!(".reqntid {threads}, 1, 1\n");
    if *min_blocks_per_sm > 0 {
        text.push_str(&format!(".minnctapersm {min_blocks_per_sm}\n"));
    }
    Ok(text)
}
