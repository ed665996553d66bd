//! Two pipelines that are filled and read in step. They share one state, which saves registers of the
//! producer.
use crate::Warp;
use crate::pipeline::mbarrier::PipelineState;
use crate::pipeline::{Consumer, MbarrierPipeline, Producer, Specialized, StageGuard};
use crate::shared::Place;
use crate::tma::{MapKind, Tma, TmaTile, TmaTransport};
use core::marker::PhantomData;

/// Two [`MbarrierPipeline`]s with the same stages, one behind the other. Stage `n` of both is filled in one
/// call and taken in one call, but each has its own mbarriers, and is released by its own guard.
pub struct Twins<T, const S: usize, By> {
    base: u32,
    what: PhantomData<(T, By)>,
}

/// The producer's side of [`Twins`].
pub struct TwinProducer<T, const S: usize, By>(Producer<T, S, By>);

/// The consumers' side of [`Twins`].
pub struct TwinConsumer<T, const S: usize, By>(Consumer<T, S, By>);

// SAFETY: the layout has two pipelines.
unsafe impl<T: TmaTile, const S: usize, By: TmaTransport> Place for Twins<T, S, By> {
    const BYTES: usize = 2 * MbarrierPipeline::<T, S, By>::BYTES;
    const ALIGN: usize = MbarrierPipeline::<T, S, By>::ALIGN;
    #[inline(always)]
    unsafe fn at(base: u32) -> Self {
        Twins { base, what: PhantomData }
    }
}

impl<T: TmaTile, const S: usize, By: TmaTransport> Twins<T, S, By> {
    /// The distance of the two pipelines.
    const DISTANCE: u32 = MbarrierPipeline::<T, S, By>::BYTES as u32;

    /// # Safety
    /// - Only one call of this function is used for each pipeline and side.
    #[inline(always)]
    unsafe fn pipeline(&self, which: u32) -> MbarrierPipeline<T, S, By> {
        // SAFETY: the bytes belong to `self`, which the caller uses once.
        unsafe { MbarrierPipeline::at(self.base + which * Self::DISTANCE) }
    }
}

/// The state of the second pipeline.
#[inline(always)]
fn second<T: TmaTile, const S: usize, By: TmaTransport>(first: &PipelineState<T, S>) -> PipelineState<T, S> {
    let mut state = PipelineState::first(first.base + Twins::<T, S, By>::DISTANCE);
    (state.stage, state.parity) = (first.stage, first.parity);
    state
}

impl<T: TmaTile, const S: usize, M: MapKind> Specialized for Twins<T, S, Tma<M>> {
    type Producer = TwinProducer<T, S, Tma<M>>;
    type Converter = ();
    type Consumer = TwinConsumer<T, S, Tma<M>>;
    const PRODUCERS: u32 = {
        assert!(M::PRODUCERS == 1, "one thread copies to twins");
        1
    };
    #[inline(always)]
    unsafe fn init(&self, consumers: u32) {
        for which in 0..2 {
            // SAFETY: the caller keeps the preconditions; each pipeline is initialised once.
            unsafe { self.pipeline(which).init(consumers) }
        }
    }
    #[inline(always)]
    unsafe fn producer(self, warp: Warp) -> Self::Producer {
        // SAFETY: the caller keeps the preconditions.
        TwinProducer(unsafe { self.pipeline(0).producer(warp) })
    }
    #[inline(always)]
    unsafe fn converter(self, _: Warp) {}
    #[inline(always)]
    unsafe fn consumer(self, warp: Warp) -> Self::Consumer {
        // SAFETY: the caller keeps the preconditions.
        TwinConsumer(unsafe { self.pipeline(0).consumer(warp) })
    }
}

impl<T: TmaTile, const S: usize, M: MapKind> TwinProducer<T, S, Tma<M>> {
    /// Waits until the next stages are empty, and starts their copies from rows with the same coordinates.
    #[inline(always)]
    pub fn load(&mut self, from: [&T::Tensor<M>; 2], at: M::At) {
        let state = second::<T, S, Tma<M>>(&self.0.state);
        let mut other: Producer<T, S, Tma<M>> = Producer { state, warp: self.0.warp, by: PhantomData };
        self.0.load(from[0], at);
        other.load(from[1], at);
    }
}

impl<T: TmaTile, const S: usize, M: MapKind> TwinConsumer<T, S, Tma<M>> {
    /// Waits for the next stages. Other stages may be taken while the guards last. A consumer that holds all
    /// stages and takes one more waits forever.
    #[inline(always)]
    pub fn take<'s>(&mut self) -> [StageGuard<'s, T>; 2]
    where
        T: 's,
    {
        let state = second::<T, S, Tma<M>>(&self.0.state);
        let mut other: Consumer<T, S, Tma<M>> = Consumer { state, warp: self.0.warp, by: PhantomData };
        [self.0.take(), other.take()]
    }
}
