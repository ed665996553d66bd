//! The compiled kernels by name, for [`AttentionRequest::config`] and `--config`.
//!
//! [`AttentionRequest::config`]: crate::request::AttentionRequest::config
pub use crate::prepared::Prepared;
pub use spec::{ATTENTION, AttnInfo, Class, Contract, Isa, KERNELS, MaskKind, Path, Schedule, plain};

use crate::Error;

/// Returns every attention kernel for keys and values in tensors: portable and Hopper's, dense and varlen,
/// with and without parameters of mask and scores.
pub fn entries() -> impl Iterator<Item = &'static AttnInfo> {
    spec::attention().filter(|entry| matches!(entry.class(), Class::Dense | Class::Varlen))
}

/// Returns every kernel for tensors whose keys and values are quantised first
/// ([`AttentionRequest::precision`](crate::request::AttentionRequest::precision)).
pub fn quantised() -> impl Iterator<Item = &'static AttnInfo> {
    spec::attention().filter(|entry| entry.class() == Class::Quantised)
}

/// Returns every kernel for prefill on a KV cache.
pub fn paged() -> impl Iterator<Item = &'static AttnInfo> {
    spec::attention().filter(|entry| entry.class() == Class::Paged)
}

/// Returns the decode kernel with this name for mixed batches. The name stands for all kernels of such a
/// launch.
pub(crate) fn mixed(symbol: &str) -> Option<&'static AttnInfo> {
    spec::attention().find(|entry| entry.class() == Class::Few && entry.contract.symbol == symbol)
}

/// Returns the entry with this symbol.
///
/// # Errors
/// Returns [`Error::Invalid`] if the table has no such entry.
pub fn entry(symbol: &str) -> Result<&'static AttnInfo, Error> {
    let mut all = entries().chain(quantised());
    all.find(|entry| entry.contract.symbol == symbol).ok_or_else(|| {
        let is_one = spec::kernels().any(|kernel| kernel.symbol == symbol);
        let expected = match spec::feature_of(symbol) {
            Some("training") => {
                "it is a kernel of gradients, which the planner selects; name a kernel of the forward \
                 (`ferroflash kernels --family forward`), or leave config out"
            }
            _ if spec::STATISTICS.iter().any(|e| e.contract.symbol == symbol) => {
                "it is a kernel of statistics, which runs behind the attention; ask for `entropy` or \
                 `max_logits`, or name a kernel of the attention"
            }
            _ if is_one => {
                "it is a kernel for caches, appends or merges; this problem needs a kernel of family \
                 forward, split, packed or hopper: `ferroflash kernels --family forward`"
            }
            _ => {
                "it must be the name of a kernel, or of a configuration of the lineage (the names of the \
                 predecessor's kernels); `ferroflash kernels` lists them"
            }
        };
        Error::invalid("config", symbol, expected)
    })
}

/// Returns the entries of a name: one entry's symbol, or a configuration of the lineage.
///
/// # Errors
/// Returns [`Error::Invalid`] if nothing has this name, or [`Error::Unsupported`] if no kernel can have this
/// configuration.
pub fn named(name: &str) -> Result<Vec<&'static AttnInfo>, Error> {
    #[cfg(feature = "lineage")]
    if let Some(configuration) = crate::lineage::Configuration::find(name) {
        return Ok(configuration.entries()?.collect());
    }
    Ok(vec![entry(name)?])
}

/// Returns the entry with this symbol, or the lineage's configuration of this name for this mask.
pub(crate) fn by_name(name: &str, mask: MaskKind) -> Result<&'static AttnInfo, Error> {
    #[cfg(feature = "lineage")]
    if let Some(configuration) = crate::lineage::Configuration::find(name) {
        return configuration.entry(mask);
    }
    let _ = mask;
    entry(name)
}

/// Returns whether a kernel has this symbol or this name of the lineage.
pub(crate) fn is_named(kernel: &Contract, name: &str) -> bool {
    #[cfg(feature = "lineage")]
    if let Some(Ok(mut entries)) = crate::lineage::Configuration::find(name).map(|found| found.entries()) {
        return entries.any(|entry| entry.contract == *kernel);
    }
    kernel.symbol == name
}
