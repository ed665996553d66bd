//! A launch for the driver: one or more kernels, each with its grid and the bytes of its parameters.
use crate::place::Place;
use crate::variant::MAX_BYTES;
use crate::{Contract, Error, MapDescription};
use spec::{
    AppendParams, BiasParams, BitsParams, ChunkedParams, CombineParams, DecodeParams, FewParams, FwdParams,
    HopperPagedParams, HopperParams, ManyParams, MergeParams, MlaHopperParams, PagedParams, PerHead, Plain,
    PrefixParams, RaggedMap, RotaryAppendParams, SinkParams, SplitParams, TensorMap, TmaBiasParams,
    VarlenParams,
};

/// The kernels of one launch with all of their parameters: a plan [bound](crate::plan::Plan::bind) to a
/// request's tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch {
    first: Kernel,
    /// The kernels after the first kernel, in launch order.
    others: [Option<Kernel>; OTHERS],
    /// Descriptions of Q, K, V and O, or of K alone. The parameters of one kernel begin with their tensor
    /// maps, which only a driver encodes.
    maps: [Option<MapDescription>; MAPS],
    /// The description of the bias that the first kernel reads through a tensor map, and the map's offset
    /// among the kernel's parameters behind `maps`.
    bias: Option<(MapDescription, u16)>,
    /// The parameters of all kernels, without tensor maps.
    params: Bytes,
    reason: &'static str,
}

/// A kernel, and the range of its bytes in [`Launch::params`].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kernel {
    place: Place,
    grid: [u32; 3],
    params: [u16; 2],
    /// Whether the kernel's parameters begin with the tensor maps.
    mapped: bool,
}

/// Maximum number of kernels after the first kernel. The most have shared prefixes: a combine kernel and the
/// prefill kernel of a mixed batch, and decode of the rest with its combine kernel.
const OTHERS: usize = 4;
/// Maximum number of bytes of a launch's parameters: of the first kernel (without tensor maps), its mask, its
/// scores, and the other kernels. A test adds them up.
const MOST: usize = if SHARED > 808 + MAX_BYTES { SHARED } else { 808 + MAX_BYTES };
/// Bytes of the parameters of shared prefixes: of a mixed batch, and of decode.
const SHARED: usize = size_of::<FewParams>() + MANY + size_of::<DecodeParams>();
/// Bytes of the parameters of a mixed batch's prefill kernel.
const MANY: usize = {
    let [portable, hopper] = [
        size_of::<ManyParams<PagedParams<[PerHead; 2]>>>(),
        size_of::<HopperPagedParams<[PerHead; 2]>>() - MAP_BYTES,
    ];
    if portable > hopper { portable } else { hopper }
};
/// Maximum number of tensor maps at the start of a kernel's parameters.
const MAPS: usize = 4;
/// Bytes of these tensor maps.
const MAP_BYTES: usize = MAPS * size_of::<TensorMap>();

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(8))]
struct Bytes([u8; MOST]);

#[repr(align(64))]
struct WithMaps([u8; MAP_BYTES + MOST]);

/// The parameter struct of a kernel.
pub(crate) trait Params: Plain {
    /// Number of tensor maps at the start of the struct.
    const MAPS: usize = 0;
}
macro_rules! params {
    ($($plain:ty),*; $(with $maps:literal maps: $($mapped:ty),*);*) => {
        $(impl Params for $plain {})*
        $($(impl Params for $mapped {
            const MAPS: usize = $maps;
        })*)*
    };
}
params! {
    FwdParams, SplitParams<FwdParams>, VarlenParams<FwdParams>, PagedParams, PagedParams<[PerHead; 2]>,
    DecodeParams, CombineParams, FewParams, ManyParams, ManyParams<PagedParams<[PerHead; 2]>>,
    AppendParams, RotaryAppendParams, MergeParams, PrefixParams, ChunkedParams, BitsParams, SinkParams,
    PerHead, BiasParams, TmaBiasParams;
    with 4 maps: HopperParams, SplitParams<HopperParams>, VarlenParams<HopperParams<RaggedMap>>,
    HopperPagedParams, HopperPagedParams<[PerHead; 2]>;
    with 1 maps: MlaHopperParams
}

impl Launch {
    /// Creates a launch of one kernel, without tensor maps.
    pub(crate) fn new<P: Params>(place: Place, grid: [u32; 3], params: &P) -> Self {
        const { assert!(P::MAPS == 0) }
        Self::from_params(place, grid, params, [None; MAPS])
    }

    /// Creates a launch of one kernel with tensor maps of Q, K, V and O, or of K alone. `params` contains
    /// placeholders for them.
    pub(crate) fn with_maps<P: Params, const N: usize>(
        place: Place,
        grid: [u32; 3],
        params: &P,
        maps: [MapDescription; N],
    ) -> Self {
        const { assert!(P::MAPS == N) }
        Self::from_params(place, grid, params, std::array::from_fn(|i| maps.get(i).copied()))
    }

    fn from_params<P: Params>(
        place: Place,
        grid: [u32; 3],
        params: &P,
        maps: [Option<MapDescription>; MAPS],
    ) -> Self {
        let mut all = WithMaps([0; MAP_BYTES + MOST]);
        params.write(&mut all.0[..size_of::<P>()]);
        let (from, own) = (P::MAPS * size_of::<TensorMap>(), size_of::<P>());
        let mut bytes = Bytes([0; MOST]);
        bytes.0[..own - from].copy_from_slice(&all.0[from..own]);
        let first = Kernel { place, grid, params: [0, (own - from) as u16], mapped: P::MAPS > 0 };
        Launch { first, others: [None; OTHERS], maps, bias: None, params: bytes, reason: "" }
    }

    /// Adds a kernel with parameters `params`.
    pub(crate) fn then<P: Params>(self, place: Place, grid: [u32; 3], params: &P) -> Self {
        self.then_all(Launch::new(place, grid, params))
    }

    /// Adds all kernels of `next`. One of the two launches may have tensor maps, but no bias among them.
    pub(crate) fn then_all(mut self, next: Launch) -> Self {
        debug_assert!(self.maps[0].is_none() || next.maps[0].is_none(), "two launches with tensor maps");
        if self.maps[0].is_none() {
            self.maps = next.maps;
        }
        let own = next.end();
        let start = self.append(own.into(), |to| to.copy_from_slice(&next.params.0[..own.into()])).0;
        for kernel in std::iter::once(next.first).chain(next.others.into_iter().flatten()) {
            self.add(Kernel { params: kernel.params.map(|at| start + at), ..kernel });
        }
        self
    }

    /// Adds a kernel whose parameters the launch has.
    fn add(&mut self, kernel: Kernel) {
        let place = self.others.iter_mut().find(|place| place.is_none());
        debug_assert!(place.is_some(), "more than {OTHERS} kernels follow the first kernel");
        if let Some(place) = place {
            *place = Some(kernel);
        }
    }

    /// Returns the number of bytes of the parameters of all kernels.
    fn end(&self) -> u16 {
        let others = self.others.iter().flatten().map(|kernel| kernel.params[1]);
        others.fold(self.first.params[1], u16::max)
    }

    /// Adds parameters of the first kernel's mask or scores behind the kernel's own parameters. Call this
    /// before you add a second kernel.
    pub(crate) fn with<P: Params>(mut self, params: &P) -> Self {
        const { assert!(P::MAPS == 0) }
        self.first.params[1] = self.append(size_of::<P>(), |to| params.write(to)).1;
        self
    }

    /// Adds a bias that the first kernel reads through a tensor map, as [`Launch::with`].
    pub(crate) fn with_bias(mut self, map: MapDescription) -> Self {
        let [.., heads, batches] = map.extents;
        self.bias = Some((map, self.first.params[1]));
        self.with(&TmaBiasParams {
            map: TensorMap { words: [0; 16] },
            of_batches: u32::from(batches > 1),
            of_heads: u32::from(heads > 1),
            reserved: [0; 14],
        })
    }

    /// Adds the bytes of a variant's parameters, as [`Launch::with`] adds parameters.
    pub(crate) fn with_bytes(mut self, bytes: &[u8]) -> Self {
        self.first.params[1] = self.append(bytes.len(), |to| to.copy_from_slice(bytes)).1;
        self
    }

    /// Writes parameters behind all parameters, and returns their range.
    fn append(&mut self, bytes: usize, write: impl FnOnce(&mut [u8])) -> (u16, u16) {
        let start = self.end();
        let end = start + bytes as u16;
        write(&mut self.params.0[start.into()..end.into()]);
        (start, end)
    }

    /// Adds a second kernel with the first kernel's grid and its parameters `P`. The second kernel gets no
    /// parameters of mask and scores.
    pub(crate) fn then_alike<P: Params>(mut self, place: Place) -> Self {
        const { assert!(P::MAPS == 0) }
        let params = [0, size_of::<P>() as u16];
        self.add(Kernel { place, params, mapped: false, ..self.first });
        self
    }

    /// Sets the reason why this kernel was selected.
    pub(crate) const fn because(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }

    /// Returns the contract of the main kernel: its symbol, threads and shared memory. In a launch of several
    /// kernels, the main kernel is the first.
    pub const fn contract(&self) -> &'static Contract {
        self.first.place.contract()
    }

    /// Returns the main kernel's place.
    pub(crate) const fn place(&self) -> Place {
        self.first.place
    }

    /// Returns the grid in thread blocks.
    pub const fn grid(&self) -> [u32; 3] {
        self.first.grid
    }

    /// Returns the reason why this kernel was selected.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// Returns the bytes of the main kernel's parameters, without tensor maps. The kernel defines their
    /// layout, which may change with every version.
    #[doc(hidden)]
    pub fn params(&self) -> &[u8] {
        self.bytes(&self.first)
    }

    fn bytes(&self, kernel: &Kernel) -> &[u8] {
        let [start, end] = kernel.params.map(usize::from);
        &self.params.0[start..end]
    }

    /// Returns places of the launch's kernels.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = Place> {
        std::iter::once(self.first).chain(self.others.into_iter().flatten()).map(|kernel| kernel.place)
    }

    /// Descriptions of the launch's tensor maps.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &MapDescription> {
        self.maps.iter().flatten().chain(self.bias.iter().map(|(map, _)| map))
    }

    /// Calls `launch` for each kernel in launch order, with its grid and the bytes of its parameters.
    /// `encode` makes the tensor maps.
    ///
    /// # Errors
    /// Returns the errors of `encode` and `launch`.
    pub(crate) fn each(
        &self,
        mut encode: impl FnMut(&MapDescription) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(Place, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for kernel in std::iter::once(&self.first).chain(self.others.iter().flatten()) {
            let (Kernel { place, grid, .. }, own) = (*kernel, self.bytes(kernel));
            if !kernel.mapped {
                launch(place, grid, own)?;
                continue;
            }
            let mut all = WithMaps([0; MAP_BYTES + MOST]);
            let maps = self.maps.iter().flatten();
            let (places, rest) = all.0.split_at_mut(maps.clone().count() * size_of::<TensorMap>());
            for (bytes, map) in places.chunks_exact_mut(size_of::<TensorMap>()).zip(maps) {
                encode(map)?.write(bytes);
            }
            rest[..own.len()].copy_from_slice(own);
            if let Some((map, at)) = &self.bias {
                encode(map)?.write(&mut rest[usize::from(*at)..][..size_of::<TensorMap>()]);
            }
            let end = places.len() + own.len();
            launch(place, grid, &all.0[..end])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_launch_has_room_for_its_parameters() {
        let masks = [size_of::<PrefixParams>(), size_of::<ChunkedParams>(), size_of::<BitsParams>()];
        let ours = masks.into_iter().max().unwrap_or(0) + size_of::<SinkParams>() + size_of::<BiasParams>();
        let variant = ours.max(size_of::<TmaBiasParams>()).max(MAX_BYTES);
        let maps = 4 * size_of::<TensorMap>();
        let tiles = [
            size_of::<FwdParams>(),
            size_of::<VarlenParams>(),
            size_of::<PagedParams<[PerHead; 2]>>(),
            size_of::<HopperParams>() - maps,
            size_of::<VarlenParams<HopperParams<RaggedMap>>>() - maps,
            size_of::<HopperPagedParams<[PerHead; 2]>>() - maps,
        ];
        let merged = tiles.into_iter().max().unwrap_or(0) + variant + size_of::<MergeParams>();
        let split = size_of::<SplitParams>() + variant + size_of::<CombineParams>();
        let alone = (size_of::<MlaHopperParams>() - size_of::<TensorMap>()) + variant;
        let many = size_of::<ManyParams<PagedParams<[PerHead; 2]>>>();
        let mixed = size_of::<FewParams>() + many.max(size_of::<HopperPagedParams<[PerHead; 2]>>() - maps);
        let shared = mixed + size_of::<DecodeParams>();
        let append = size_of::<RotaryAppendParams>();
        let most = [merged, split, alone, shared, append].into_iter().max().unwrap_or(0);
        assert!((most..most + 16).contains(&MOST), "{most} bytes, but MOST is {MOST}");
    }
}
