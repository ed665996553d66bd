//! A launch for the driver: a list of steps, each a kernel with its grid and the bytes of its parameters.
use crate::place::Place;
use crate::request::PARTS;
use crate::variant::MAX_BYTES;
use crate::{Contract, Error, MapDescription};
use spec::{
    AppendParams, BiasParams, BitsParams, BwdConvertDqParams, BwdDbiasParams, BwdDeltaParams, BwdDkDvParams,
    BwdDqParams, BwdDsinksParams, BwdHopperParams, BwdSumHeadsParams, BwdTableParams, ChunkedParams,
    CombineParams, DecodeParams, FewParams, Fp8Params, FwdParams, HeadMaximaParams, HopperPagedParams,
    HopperParams, LayFp8PagesParams, LayFp8Params, LayInt8PagesParams, ManyParams, MaximaParams, MergeParams,
    MlaHopperParams, NumberTilesParams, PagedParams, PerHead, Plain, PrefixParams, QuantiseParams, RaggedMap,
    RotaryAppendParams, RoundFp8Params, SinkParams, SparseParams, SplitParams, TensorMap, TmaBiasParams,
    UsedQueriesParams, VarlenParams,
};

/// The kernels of one launch with all of their parameters: a plan [bound](crate::plan::Plan::bind) to a
/// request's tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch {
    /// The steps in launch order. Each step begins when the previous step has ended, unless its kernel waits
    /// for that step by itself ([`Contract::is_dependent`]).
    steps: [Option<Step>; STEPS],
    /// The index of the main step.
    main: u8,
    /// The descriptions of all tensor maps, each with the place of its map among `params`.
    maps: [Option<(u16, MapDescription)>; MAPS],
    /// The parameters of all steps. Tensor maps are missing: only a driver encodes them.
    params: Params,
    /// The number of bytes of `params`.
    end: u16,
    reason: &'static str,
}

/// A kernel, its grid, and the range of its bytes in [`Launch::params`].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    place: Place,
    grid: [u32; 3],
    params: [u16; 2],
}

/// Maximum number of steps: three passes, each with its combine kernel or with the kernel that numbers its
/// tiles, and statistics.
const STEPS: usize = 7;
/// Maximum number of tensor maps of all steps.
const MAPS: usize = 8;

/// The words of a launch that move with its request's memory, each with the index of the part of the request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sites {
    /// Indices of words of [`Launch::params`].
    params: [Option<(u16, u8)>; SITES],
    maps: [u8; MAPS],
}

/// Maximum number of addresses among a launch's parameters.
const SITES: usize = 64;
/// Size of an address, in bytes.
const WORD: usize = size_of::<u64>();

/// Maximum number of bytes of a launch's parameters.
const MOST: usize = {
    let masks = [size_of::<PrefixParams>(), size_of::<ChunkedParams>(), size_of::<BitsParams>()];
    let scores = [size_of::<SinkParams>() + size_of::<BiasParams>(), size_of::<TmaBiasParams>()];
    let variant = most(&[most(&masks) + most(&scores), MAX_BYTES]);
    let paged = [size_of::<PagedParams<[PerHead; 2]>>(), size_of::<HopperPagedParams<[PerHead; 2]>>()];
    let tensors = [size_of::<VarlenParams>(), size_of::<VarlenParams<HopperParams<RaggedMap>>>()];
    let many = most(&[size_of::<ManyParams<PagedParams<[PerHead; 2]>>>(), most(&paged)]);
    let [few, decode] = [size_of::<FewParams>(), size_of::<DecodeParams>()];
    // A pass of statistics follows the attention.
    let statistics = most(&[size_of::<FwdParams>(), size_of::<VarlenParams>(), size_of::<PagedParams>()]);
    let attention = most(&[
        most(&[most(&paged), most(&tensors)]) + variant + size_of::<MergeParams>(),
        size_of::<SplitParams<HopperParams>>() + variant + size_of::<CombineParams>(),
        size_of::<MlaHopperParams>() + decode,
        few + size_of::<NumberTilesParams>() + many + decode,
    ]);
    most(&[
        attention + statistics + size_of::<UsedQueriesParams>() + size_of::<HeadMaximaParams>(),
        2 * size_of::<RoundFp8Params>()
            + size_of::<LayFp8PagesParams>()
            + most(&[
                size_of::<Fp8Params<VarlenParams<HopperParams<RaggedMap>>>>(),
                size_of::<Fp8Params<HopperPagedParams>>(),
            ])
            + size_of::<UsedQueriesParams>(),
        size_of::<RotaryAppendParams>(),
        size_of::<UsedQueriesParams>()
            + size_of::<BwdDeltaParams>()
            + size_of::<BwdDsinksParams>()
            + size_of::<BwdSumHeadsParams>()
            + most(&[size_of::<BwdTableParams>(), size_of::<BwdDbiasParams>()])
            + variant
            + most(&[
                size_of::<BwdDkDvParams>() + size_of::<BwdDqParams>() + 2 * variant,
                size_of::<BwdHopperParams<RaggedMap>>() + size_of::<BwdConvertDqParams>(),
            ]),
    ])
};

const fn most(numbers: &[usize]) -> usize {
    match numbers {
        [] => 0,
        [first, others @ ..] => {
            let rest = most(others);
            if *first > rest { *first } else { rest }
        }
    }
}

/// Parameters, aligned for tensor maps.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
struct Params([u8; MOST]);

/// A part of a kernel's parameters: the kernel's own struct, or the struct of its mask or scores.
pub(crate) trait Part: Plain {
    /// Number of tensor maps at the start of the struct.
    const MAPS: usize = 0;
}
macro_rules! parts {
    ($($plain:ty),*; $(with $maps:literal maps: $($mapped:ty),*);*) => {
        $(impl Part for $plain {})*
        $($(impl Part for $mapped {
            const MAPS: usize = $maps;
        })*)*
    };
}
parts! {
    FwdParams, SplitParams<FwdParams>, VarlenParams<FwdParams>, PagedParams, PagedParams<[PerHead; 2]>,
    DecodeParams, CombineParams, FewParams, ManyParams, ManyParams<PagedParams<[PerHead; 2]>>,
    AppendParams, RotaryAppendParams, MergeParams, QuantiseParams, PrefixParams, ChunkedParams, BitsParams,
    SinkParams, MaximaParams, SparseParams, PerHead, BiasParams, BwdDeltaParams, BwdDkDvParams, BwdDqParams,
    BwdDsinksParams, BwdConvertDqParams, BwdSumHeadsParams, BwdTableParams, BwdDbiasParams,
    UsedQueriesParams, HeadMaximaParams, NumberTilesParams, RoundFp8Params, LayFp8Params,
    LayFp8PagesParams, LayInt8PagesParams;
    with 6 maps: BwdHopperParams, BwdHopperParams<RaggedMap>;
    with 4 maps: HopperParams, SplitParams<HopperParams>, VarlenParams<HopperParams<RaggedMap>>, Fp8Params,
    Fp8Params<VarlenParams<HopperParams<RaggedMap>>>, Fp8Params<HopperPagedParams>, HopperPagedParams,
    HopperPagedParams<[PerHead; 2]>;
    with 1 maps: MlaHopperParams, TmaBiasParams
}

impl Launch {
    /// Creates a launch without steps. `reason` says why its kernels were selected.
    pub(crate) const fn new(reason: &'static str) -> Self {
        let params = Params([0; MOST]);
        Launch { steps: [None; STEPS], main: 0, maps: [None; MAPS], params, end: 0, reason }
    }

    /// Adds a step. `maps` are the tensor maps for which `params` contains placeholders.
    pub(crate) fn step<P: Part, const N: usize>(
        &mut self,
        place: Place,
        grid: [u32; 3],
        params: &P,
        maps: [MapDescription; N],
    ) {
        let free = self.steps.iter_mut().find(|step| step.is_none());
        debug_assert!(free.is_some(), "more than {STEPS} steps");
        if let Some(free) = free {
            *free = Some(Step { place, grid, params: [self.end; 2] });
        }
        self.add(params, maps);
    }

    /// Adds a step of no thread block. It names the kernel of a launch that does nothing.
    pub(crate) const fn idle(&mut self, place: Place) {
        self.steps[0] = Some(Step { place, grid: [0; 3], params: [0; 2] });
    }

    /// Adds a step with the same first parameters as the last step.
    pub(crate) fn repeat<P: Part>(&mut self, place: Place, grid: [u32; 3]) {
        let count = self.steps.iter().flatten().count();
        debug_assert!((1..STEPS).contains(&count), "no step, or more than {STEPS} steps");
        if let Some([Some(last), free]) = self.steps.get_mut(count.wrapping_sub(1)..=count) {
            let [start, _] = last.params;
            *free = Some(Step { place, grid, params: [start, start + size_of::<P>() as u16] });
        }
    }

    /// Adds parameters of the last step's mask or scores behind the step's other parameters.
    pub(crate) fn add<P: Part, const N: usize>(&mut self, params: &P, maps: [MapDescription; N]) {
        const { assert!(P::MAPS == N) }
        let mut at = self.end;
        self.append(size_of::<P>(), |to| params.write(to));
        for (free, map) in self.maps.iter_mut().filter(|map| map.is_none()).zip(maps) {
            *free = Some((at, map));
            at += size_of::<TensorMap>() as u16;
        }
    }

    /// Adds the bytes of a variant's parameters, as [`Launch::add`] adds parameters.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) {
        self.append(bytes.len(), |to| to.copy_from_slice(bytes));
    }

    /// Writes parameters behind all parameters of the last step.
    fn append(&mut self, bytes: usize, write: impl FnOnce(&mut [u8])) {
        let end = self.end + bytes as u16;
        write(&mut self.params.0[self.end.into()..end.into()]);
        self.end = end;
        if let Some(step) = self.steps.iter_mut().rev().flatten().next() {
            step.params[1] = end;
        }
    }

    /// Returns the words in which `moved` differs: a launch of the same request, with each part moved by one
    /// of `steps`. Returns `None` if the launches differ otherwise.
    pub(crate) fn sites(&self, moved: &Launch, steps: &[u64]) -> Option<Sites> {
        let part = |from: u64, to: u64| {
            let step = to.wrapping_sub(from);
            steps.iter().position(|own| *own == step).map(|part| part as u8)
        };
        let mut sites = Sites { params: [None; SITES], maps: [0; MAPS] };
        let mut free = sites.params.iter_mut();
        for at in 0..usize::from(self.end).div_ceil(WORD) {
            let [from, to] = [self, moved].map(|launch| launch.word(at));
            if from != to {
                *free.next()? = Some((at as u16, part(from, to)?));
            }
        }
        for ((site, from), to) in sites.maps.iter_mut().zip(&self.maps).zip(&moved.maps) {
            match (from, to) {
                (Some((at, from)), Some((to_at, to))) => {
                    *site = part(from.address, to.address)?;
                    let same = MapDescription { address: to.address, ..*from } == *to && at == to_at;
                    same.then_some(())?;
                }
                (None, None) => {}
                _ => return None,
            }
        }
        let rest = |launch: &Launch| (launch.steps, launch.main, launch.end);
        (rest(self) == rest(moved)).then_some(sites)
    }

    /// Adds to each address how far its part moves.
    #[inline]
    pub(crate) fn move_by(&mut self, sites: &Sites, distances: &[u64; PARTS]) {
        for &(at, part) in sites.params.iter().map_while(Option::as_ref) {
            if let Some(word) = self.params.0[usize::from(at) * WORD..].first_chunk_mut::<WORD>() {
                *word = u64::from_le_bytes(*word).wrapping_add(distances[usize::from(part)]).to_le_bytes();
            }
        }
        for ((_, map), part) in self.maps.iter_mut().flatten().zip(sites.maps) {
            map.address = map.address.wrapping_add(distances[usize::from(part)]);
        }
    }

    fn word(&self, at: usize) -> u64 {
        let bytes = self.params.0[at * WORD..].first_chunk::<WORD>();
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Makes the next step the main step.
    pub(crate) fn main_follows(&mut self) {
        self.main = self.steps.iter().flatten().count() as u8;
    }

    /// Returns the main step.
    const fn main(&self) -> Step {
        const NONE: Step = Step { place: Place::Table(0), grid: [0; 3], params: [0; 2] };
        match self.steps[self.main as usize] {
            Some(step) => step,
            // No launch leaves this crate without a step.
            None => NONE,
        }
    }

    /// Returns the contract of the main kernel: its symbol, threads and shared memory. In a launch of several
    /// kernels, the main kernel is the first; in a backward pass, it computes dK and dV.
    pub const fn contract(&self) -> &'static Contract {
        self.place().contract()
    }

    /// Returns the main kernel's place.
    pub(crate) const fn place(&self) -> Place {
        self.main().place
    }

    /// Returns the grid in thread blocks.
    pub const fn grid(&self) -> [u32; 3] {
        self.main().grid
    }

    /// Returns the reason why this kernel was selected.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// Returns the bytes of the main kernel's parameters. Tensor maps are placeholders. The kernel defines
    /// the layout, which may change with every version.
    #[doc(hidden)]
    pub fn params(&self) -> &[u8] {
        self.bytes(&self.main())
    }

    fn bytes(&self, step: &Step) -> &[u8] {
        let [start, end] = step.params.map(usize::from);
        &self.params.0[start..end]
    }

    /// Returns the kernels in launch order.
    pub fn kernels(&self) -> impl Iterator<Item = &'static Contract> {
        self.places().map(Place::contract)
    }

    /// Returns the places of the steps' kernels.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        self.steps.into_iter().flatten().map(|step| step.place)
    }

    /// Returns the place of each step's kernel, with the bytes of its parameters.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (Place, &[u8])> {
        self.steps.iter().flatten().map(|step| (step.place, self.bytes(step)))
    }

    /// Returns the descriptions of all steps' tensor maps.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &MapDescription> {
        self.maps.iter().flatten().map(|(_, map)| map)
    }

    /// Calls `launch` for each step, with its kernel, its grid and the bytes of its parameters. `encode`
    /// makes the tensor maps.
    ///
    /// # Errors
    /// Returns the errors of `encode` and `launch`.
    pub(crate) fn each(
        &self,
        mut encode: impl FnMut(&MapDescription) -> Result<TensorMap, Error>,
        mut launch: impl FnMut(Place, [u32; 3], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for step in self.steps.iter().flatten().filter(|step| !step.grid.contains(&0)) {
            let [start, end] = step.params;
            let mut maps = self.maps.iter().flatten().filter(|(at, _)| (start..end).contains(at)).peekable();
            if maps.peek().is_none() {
                launch(step.place, step.grid, self.bytes(step))?;
                continue;
            }
            let mut params = Params([0; MOST]);
            let params = &mut params.0[..usize::from(end - start)];
            params.copy_from_slice(self.bytes(step));
            for (at, map) in maps {
                let at = usize::from(at - start);
                encode(map)?.write(&mut params[at..][..size_of::<TensorMap>()]);
            }
            launch(step.place, step.grid, params)?;
        }
        Ok(())
    }
}
