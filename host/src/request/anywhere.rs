//! Requests without places of memory. Selection sees only these: no choice can depend on an address, or on
//! the size of a buffer. A plan therefore serves every request that is equal without places.
use super::{AttentionRequest, Mask, Region, Resolve, ResolveVariant, Scratch, SharedPrefixes};
use crate::variant::WithVariant;
use std::convert::Infallible;

/// The place of values that are not the first columns of keys.
const APART: u64 = 1 << 60;

/// Resolves all memory to one place without a size.
#[derive(Default)]
struct Anywhere {
    /// The address of a cache's keys.
    keys: u64,
}

impl Resolve<u64> for Anywhere {
    type Error = Infallible;

    fn resolve(&mut self, field: &'static str, address: u64, _: u64) -> Result<(u64, u64), Infallible> {
        let place = match field {
            "cache.keys" => {
                self.keys = address;
                0
            }
            "cache.values" if address != self.keys => APART,
            // TMA needs an aligned bias, so the kernel depends on these bits of the address.
            "bias" => address % 16,
            _ => 0,
        };
        Ok((place, 0))
    }
}

impl ResolveVariant<WithVariant, Infallible> for Anywhere {
    fn variant(&mut self, variant: WithVariant, _: &AttentionRequest<'_>) -> Result<WithVariant, Infallible> {
        Ok(variant.without_params())
    }
}

impl Mask {
    /// Returns the mask without addresses and sizes of memory.
    pub(crate) fn anywhere(self) -> Self {
        let Ok(mask) = self.on(&mut Anywhere::default());
        mask
    }
}

impl SharedPrefixes {
    /// Returns the prefixes without addresses and sizes of memory.
    pub(crate) fn anywhere(self) -> Self {
        let Ok(prefixes) = self.on(&mut Anywhere::default());
        prefixes
    }
}

impl AttentionRequest<'_> {
    /// Returns the request without `config`. The result borrows nothing.
    pub(crate) fn unconfigured(mut self) -> AttentionRequest<'static> {
        let rows = self.take_rows();
        let AttentionRequest { q, o, queries, kv, mask, scores, max_logits_head, .. } = self;
        let AttentionRequest { descales, shared_prefixes, variant, .. } = self;
        let request = AttentionRequest::new(q, queries, kv, o).with_options(self.options());
        let request =
            AttentionRequest { mask, scores, max_logits_head, descales, shared_prefixes, variant, ..request };
        request.with_rows(rows)
    }

    /// Returns the request without the addresses and sizes of its memory, and without `config`. The result
    /// keeps three facts that selection reads: whether values are in the place of keys (a latent cache), how
    /// a bias is aligned, and the sizes of scratch memory.
    pub(crate) fn anywhere(&self) -> AttentionRequest<'static> {
        let Ok(mut r) = self.unconfigured().on(&mut Anywhere::default());
        if let Scratch::Memory { workspace, counters } = r.scratch {
            let counters = counters.map(|counters| Region { address: 0, ..counters });
            r.scratch = Scratch::Memory { workspace: Region { address: 0, ..workspace }, counters };
        }
        r
    }
}
