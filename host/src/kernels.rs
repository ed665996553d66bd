//! The kernels that are compiled, by their names: what [`AttentionRequest::config`] and `--config` take.
//!
//! [`AttentionRequest::config`]: crate::request::AttentionRequest::config
pub use crate::prepared::Prepared;
pub use spec::{
    AttnInfo, Contract, ENTRIES, HOPPERS, HOPPERS_PACKED, KERNELS, MaskKind, PACKED, PLANNED, Path, Schedule,
};

use crate::Error;
use spec::{DECODES, HOPPERS_PAGED, PAGED};

/// Every kernel that may solve an attention whose keys and values are tensors: [`ENTRIES`], those for varlen
/// sequences, and those for Hopper alone.
pub fn entries() -> impl Iterator<Item = &'static AttnInfo> {
    ENTRIES.iter().chain(PACKED).chain(HOPPERS).chain(HOPPERS_PACKED)
}

/// Every kernel for many queries on a cache.
pub(crate) fn paged() -> impl Iterator<Item = &'static AttnInfo> {
    PAGED.iter().chain(HOPPERS_PAGED)
}

/// The kernel for few queries on a cache that has this name.
pub(crate) fn decode(symbol: &str) -> Option<&'static AttnInfo> {
    DECODES.iter().find(|entry| entry.contract.symbol == symbol)
}

/// The entry of a symbol.
///
/// # Errors
/// [`Error::Invalid`] where the table has no such entry.
pub fn entry(symbol: &str) -> Result<&'static AttnInfo, Error> {
    entries().find(|entry| entry.contract.symbol == symbol).ok_or_else(|| {
        let expected = if spec::kernels().any(|kernel| kernel.symbol == symbol) {
            "it is a kernel for caches, appends or merges; this problem needs one of the families forward, \
             split, packed or hopper: `ferroflash kernels --family forward`"
        } else {
            "it must be the name of an entry or of a configuration of the lineage; `ferroflash kernels` \
             lists them"
        };
        Error::invalid("config", symbol, expected)
    })
}

/// The entries that a name stands for: one by its own name, or those of a configuration of the lineage.
///
/// # Errors
/// [`Error::Invalid`] where nothing has that name, [`Error::Unsupported`] where no kernel can be like that.
pub fn named(name: &str) -> Result<Vec<&'static AttnInfo>, Error> {
    #[cfg(feature = "lineage")]
    if let Some(configuration) = crate::lineage::Configuration::find(name) {
        return Ok(configuration.entries()?.collect());
    }
    Ok(vec![entry(name)?])
}

/// The entry of a symbol, or of one of the lineage's names for this mask.
pub(crate) fn by_name(name: &str, mask: MaskKind) -> Result<&'static AttnInfo, Error> {
    #[cfg(feature = "lineage")]
    if let Some(configuration) = crate::lineage::Configuration::find(name) {
        return configuration.entry(mask);
    }
    let _ = mask;
    entry(name)
}

/// Whether a kernel has this name, its own or one of the lineage's.
pub(crate) fn is_named(kernel: &Contract, name: &str) -> bool {
    #[cfg(feature = "lineage")]
    if let Some(Ok(mut entries)) = crate::lineage::Configuration::find(name).map(|found| found.entries()) {
        return entries.any(|entry| entry.contract == *kernel);
    }
    kernel.symbol == name
}
