//! The kernels of which mutants are made, and the problems on which these kernels are launched.
use crate::subjects::is_persistent;
use ferroflash::Attention;
use ferroflash::driver::SimDriver;
use ferroflash::kernels::{AttnInfo, MaskKind, entries};
use ptx_sim::Options;
use reference::{is_carried, subjects};
use spec::{
    COMBINES, CONVERT_DQS, Class, Contract, DELTAS, GRADIENTS, SplitKernels, attention, beside, combine_of,
};

/// A kernel of which mutants are made.
#[derive(Clone, Copy)]
pub struct Subject {
    /// The launch contract of the kernel.
    pub kernel: Contract,
    /// The subject whose launches run the kernel: the kernel itself, a kernel whose splits it combines, the
    /// decode kernel that runs beside it in a mixed batch, or another kernel of the backward pass.
    pub of: &'static dyn reference::Subject,
}

/// The kernels that run in launches of other backward kernels: of -LSE and delta, of dQ and of biases, and
/// those that round sums of dQ.
fn beside_gradients() -> impl Iterator<Item = Subject> {
    let own = GRADIENTS.iter().filter(|e| e.pass.is_beside()).map(|e| e.contract);
    let all = DELTAS.iter().map(|e| e.contract).chain(own).chain(CONVERT_DQS.iter().map(|e| e.contract));
    all.filter_map(|kernel| {
        // Varlen problems reach the code that finds sequences.
        let [first, last] = [true, false].map(|is_first| {
            let of = GRADIENTS.iter().filter(|of| !of.pass.is_beside());
            let mut of = of.filter(|of| reference::Subject::companions(*of).contains(&kernel));
            if is_first { of.next() } else { of.rfind(|of| of.is_varlen()) }
        });
        let is_own = GRADIENTS.iter().any(|e| e.contract == kernel);
        let of = last.filter(|_| !is_own).or(first)?;
        Some(Subject { kernel, of })
    })
}

impl Subject {
    /// Every compiled kernel, family after family.
    pub fn all() -> impl Iterator<Item = Self> {
        let own = subjects().map(|of| Subject { kernel: *of.contract(), of });
        // Under a causal mask, some splits are empty. A build that carries a sample has one of these kernels.
        let splits = |entry: &&AttnInfo| entry.splits && !entry.has_maps() && entry.mask == MaskKind::Causal;
        let carried_first = |entry: &&AttnInfo| !is_carried(entry.contract.symbol);
        let combines = COMBINES.iter().filter(|combine| combine.of != SplitKernels::Mixed);
        let combines = combines.flat_map(move |combine| {
            let fits = |entry: &&AttnInfo| combine.finishes(entry) && entry.kv_dtype == combine.dtype;
            let of = attention().filter(fits).filter(|entry| entry.decodes() || splits(entry));
            let of = of.filter(|entry| !entry.is_latent()).min_by_key(carried_first);
            of.map(|of| Subject { kernel: combine.contract, of })
        });
        // A launch of a mixed batch has a second kernel beside the kernel that names the launch.
        let mixed = attention().filter(|entry| entry.class() == Class::Few).flat_map(|few| {
            // Kernels of other KV caches have the same combine kernel.
            let combine = combine_of(few).filter(|_| few.kv_dtype == few.dtype);
            beside(few).chain(combine).map(move |kernel| Subject { kernel, of: few })
        });
        own.chain(combines).chain(mixed).chain(beside_gradients())
    }

    /// Whether the kernel is a combine kernel, the prefill kernel of a mixed batch, or beside a backward
    /// kernel.
    pub fn merges(&self) -> bool {
        self.kernel.symbol != self.of.contract().symbol
    }

    /// The forward entry whose launches run the kernel, if there is one.
    pub(super) fn forward(&self) -> Option<&'static AttnInfo> {
        entries().find(|entry| entry.contract == *self.of.contract())
    }

    /// A simulator of the smallest card that can run the kernel.
    pub(crate) fn simulator(&self, options: Options) -> Attention<SimDriver> {
        match self.forward() {
            Some(entry) if !is_persistent(&self.kernel) => crate::simulator_with(entry, options),
            _ => crate::subjects::simulator(self.of, options),
        }
    }
}
