//! A launch for the driver: one or two kernels, each with its grid and the bytes of its parameters.
use crate::{Contract, Error, MapDescription};
use spec::{
    AppendParams, BiasParams, BitsParams, ChunkedParams, CombineParams, DecodeParams, FewParams, FwdParams,
    HopperPagedParams, HopperParams, KERNELS, ManyParams, MergeParams, PagedParams, PrefixParams, RaggedMap,
    SinkParams, SplitParams, TensorMap, VarlenParams,
};

/// The kernels of one launch with all of their parameters: a plan [bound](crate::plan::Plan::bind) to a
/// request's tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch {
    first: Kernel,
    /// The combine kernel for the first kernel's splits, or the merge kernel that adds sinks.
    second: Option<Kernel>,
    /// The prefill kernel of a mixed batch.
    third: Option<Kernel>,
    /// Descriptions of Q, K, V and O. The first kernel's parameters begin with their tensor maps, which only
    /// a driver encodes.
    maps: Option<[MapDescription; 4]>,
    /// The parameters, without tensor maps.
    params: Bytes,
    reason: &'static str,
}

/// A kernel, and its range of [`Launch::params`].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kernel {
    /// The kernel's index in [`KERNELS`].
    place: u16,
    grid: [u32; 3],
    params: [u16; 2],
}

/// Maximum bytes of a launch's parameters: of the first kernel (without tensor maps), its mask, its scores,
/// and the second kernel. A test adds them up.
const MOST: usize = 896;
/// Bytes of four tensor maps.
const MAPS: usize = 4 * size_of::<TensorMap>();

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(8))]
struct Bytes([u8; MOST]);

#[repr(align(64))]
struct WithMaps([u8; MAPS + MOST]);

/// The parameter struct of a kernel.
///
/// # Safety
/// Every byte is initialised: the type is plain data without padding (`no_padding!` checks this).
pub(crate) unsafe trait Params: Copy {
    /// Number of tensor maps at the start of the struct.
    const MAPS: usize = 0;
}
macro_rules! params {
    ($($plain:ty),*; with maps: $($mapped:ty),*) => {
        // SAFETY: `spec` checks the type with `no_padding!`.
        $(unsafe impl Params for $plain {})*
        // SAFETY: as above.
        $(unsafe impl Params for $mapped {
            const MAPS: usize = 4;
        })*
    };
}
params! {
    FwdParams, SplitParams<FwdParams>, VarlenParams<FwdParams>, PagedParams, DecodeParams, CombineParams,
    FewParams, ManyParams,
    AppendParams, MergeParams, PrefixParams, ChunkedParams, BitsParams, SinkParams, BiasParams;
    with maps: HopperParams, SplitParams<HopperParams>, VarlenParams<HopperParams<RaggedMap>>,
    HopperPagedParams
}

impl Launch {
    /// A launch of one kernel, by its index in [`KERNELS`], without tensor maps.
    pub(crate) fn new<P: Params>(place: usize, grid: [u32; 3], params: &P) -> Self {
        const { assert!(P::MAPS == 0) }
        Self::from_params(place, grid, params, None)
    }

    /// A launch of one kernel with tensor maps of Q, K, V and O. `params` contains placeholders for them.
    pub(crate) fn with_maps<P: Params>(
        place: usize,
        grid: [u32; 3],
        params: &P,
        maps: [MapDescription; 4],
    ) -> Self {
        const { assert!(P::MAPS == 4) }
        Self::from_params(place, grid, params, Some(maps))
    }

    fn from_params<P: Params>(
        place: usize,
        grid: [u32; 3],
        params: &P,
        maps: Option<[MapDescription; 4]>,
    ) -> Self {
        let mut bytes = Bytes([0; MOST]);
        let own = &bytes_of(params)[P::MAPS * size_of::<TensorMap>()..];
        bytes.0[..own.len()].copy_from_slice(own);
        let first = Kernel { place: place as u16, grid, params: [0, own.len() as u16] };
        Launch { first, second: None, third: None, maps, params: bytes, reason: "" }
    }

    /// Adds a kernel with parameters `params`; behind it, no other kernel brings parameters.
    pub(crate) fn then<P: Params>(mut self, place: usize, grid: [u32; 3], params: &P) -> Self {
        const { assert!(P::MAPS == 0) }
        let (own, start) = (bytes_of(params), usize::from(self.first.params[1]));
        let end = start + own.len();
        self.params.0[start..end].copy_from_slice(own);
        let next = Some(Kernel { place: place as u16, grid, params: [start as u16, end as u16] });
        if self.second.is_none() {
            self.second = next
        } else {
            self.third = next
        }
        self
    }

    /// Adds parameters of the first kernel's mask or scores, behind the kernel's own. Call this before a
    /// second kernel is added.
    pub(crate) fn with<P: Params>(mut self, params: &P) -> Self {
        const { assert!(P::MAPS == 0) }
        let (own, start) = (bytes_of(params), usize::from(self.first.params[1]));
        let end = start + own.len();
        self.params.0[start..end].copy_from_slice(own);
        self.first.params[1] = end as u16;
        self
    }

    /// Adds a second kernel with the first kernel's grid and its parameters `P`. It gets no parameters of
    /// mask and scores.
    pub(crate) fn then_alike<P: Params>(mut self, place: usize) -> Self {
        const { assert!(P::MAPS == 0) }
        let params = [0, size_of::<P>() as u16];
        self.second = Some(Kernel { place: place as u16, params, ..self.first });
        self
    }

    /// Sets the reason for the kernel.
    pub(crate) const fn because(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }

    /// The main kernel: its symbol, threads and shared memory. In a launch of two kernels, it is the first.
    pub const fn contract(&self) -> &'static Contract {
        &KERNELS[self.first.place as usize]
    }

    /// The grid in thread blocks.
    pub const fn grid(&self) -> [u32; 3] {
        self.first.grid
    }

    /// The reason for this kernel.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// The bytes of the main kernel's parameters, without tensor maps. The kernel defines the layout, and it
    /// may change with every version.
    #[doc(hidden)]
    pub fn params(&self) -> &[u8] {
        self.bytes(&self.first)
    }

    fn bytes(&self, kernel: &Kernel) -> &[u8] {
        let [start, end] = kernel.params.map(usize::from);
        &self.params.0[start..end]
    }

    /// Indices of the launch's kernels in [`KERNELS`].
    pub(crate) fn kernels(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.first).chain(self.second).chain(self.third).map(|kernel| kernel.place.into())
    }

    /// Descriptions of the launch's tensor maps.
    pub(crate) fn maps(&self) -> &[MapDescription] {
        self.maps.as_ref().map_or(&[], |maps| maps)
    }

    /// Calls `launch` for each kernel in launch order, with its index in [`KERNELS`], its grid and the bytes
    /// of its parameters. `encode` makes the tensor maps.
    ///
    /// # Errors
    /// The errors of `encode` and `launch`.
    pub(crate) fn each(
        &self,
        mut encode: impl FnMut(&MapDescription) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(usize, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (Kernel { place, grid, .. }, own) = (self.first, self.bytes(&self.first));
        match &self.maps {
            None => launch(place.into(), grid, own)?,
            Some(maps) => {
                let mut all = WithMaps([0; MAPS + MOST]);
                let (places, rest) = all.0.split_at_mut(MAPS);
                for (bytes, map) in places.chunks_exact_mut(size_of::<TensorMap>()).zip(maps) {
                    let TensorMap { words } = encode(map)?;
                    bytes
                        .as_chunks_mut()
                        .0
                        .iter_mut()
                        .zip(words)
                        .for_each(|(b, word)| *b = word.to_ne_bytes());
                }
                rest[..own.len()].copy_from_slice(own);
                launch(place.into(), grid, &all.0[..MAPS + own.len()])?;
            }
        }
        let mut rest = self.second.iter().chain(&self.third);
        rest.try_for_each(|kernel| launch(kernel.place.into(), kernel.grid, self.bytes(kernel)))
    }
}

/// The bytes of a kernel's parameters.
fn bytes_of<P: Params>(params: &P) -> &[u8] {
    // SAFETY: the bytes are readable while the value lives; the trait promises that all of them are
    // initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(params).cast(), size_of::<P>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_launch_has_room_for_its_parameters() {
        let masks = [size_of::<PrefixParams>(), size_of::<ChunkedParams>(), size_of::<BitsParams>()];
        let variant =
            masks.into_iter().max().unwrap_or(0) + size_of::<SinkParams>() + size_of::<BiasParams>();
        let maps = 4 * size_of::<TensorMap>();
        let tiles = [
            size_of::<FwdParams>(),
            size_of::<VarlenParams>(),
            size_of::<PagedParams>(),
            size_of::<HopperParams>() - maps,
            size_of::<VarlenParams<HopperParams<RaggedMap>>>() - maps,
            size_of::<HopperPagedParams>() - maps,
        ];
        let merged = tiles.into_iter().max().unwrap_or(0) + variant + size_of::<MergeParams>();
        let split = size_of::<SplitParams>() + variant + size_of::<CombineParams>();
        let alone = size_of::<DecodeParams>() + variant;
        let mixed = size_of::<FewParams>() + size_of::<ManyParams>();
        let most = [merged, split, alone, mixed, size_of::<AppendParams>()].into_iter().max().unwrap_or(0);
        assert!((most..most + 16).contains(&MOST), "{most} bytes, but MOST is {MOST}");
    }
}
