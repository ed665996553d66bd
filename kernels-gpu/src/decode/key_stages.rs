//! The stages of keys in a kernel on a latent cache: as they are, or converted to the operands' type.
use spec::{Element, Kernel};
use tile::Block;
use tile::copy::CpAsync;
use tile::exchange::Scratch;
use tile::pipeline::{ConvertedRing, ConvertedStages, Pipeline, Ready, Ring};
use tile::shared::{ConvertRows, Place, SharedLayout, SharedTile};

/// The block's copies.
type By<C> = CpAsync<Block<C>>;
/// The place of a stage that copies fill.
pub type Slot<S, C> = <S as SharedLayout>::Slot<By<C>>;

/// The place of stages that become tiles `T`.
pub trait KeyStages<C: Kernel, T: SharedLayout>: Place {
    /// The tile that copies fill.
    type Stored: SharedLayout;
    /// The value of a stored number, divided by its value in a tile `T`.
    const FACTOR: f32;
    /// Number of stages in flight.
    const AHEAD: u32;
    /// The stages whose copies have started.
    type Running;
    /// The place, once all stages are used.
    type Spent: Place;
    /// Starts the copies of the first stages, by number.
    fn start(self, copy: impl FnMut(u32, &Slot<Self::Stored, C>)) -> Self::Running;
    /// The next stage. Starts the copies that `refill` makes.
    fn next<'s>(
        running: &'s mut Self::Running,
        block: &mut Block<C>,
        refill: impl FnOnce(&Slot<Self::Stored, C>, &Block<C>),
    ) -> Ready<'s, T>
    where
        T: 's;
    /// Turns the stages into scratch memory.
    fn reclaim(running: Self::Running, block: &mut Block<C>) -> Scratch<Self::Spent>;
}

impl<C: Kernel, T: SharedLayout, const STAGES: usize> KeyStages<C, T> for Ring<T, STAGES, By<C>> {
    type Stored = T;
    const FACTOR: f32 = 1.0;
    const AHEAD: u32 = STAGES as u32 - 1;
    type Running = Pipeline<T, STAGES, By<C>>;
    type Spent = Self;
    #[inline(always)]
    fn start(self, copy: impl FnMut(u32, &Slot<T, C>)) -> Self::Running {
        Ring::start(self, copy)
    }
    #[inline(always)]
    fn next<'s>(
        running: &'s mut Self::Running,
        block: &mut Block<C>,
        refill: impl FnOnce(&Slot<T, C>, &Block<C>),
    ) -> Ready<'s, T>
    where
        T: 's,
    {
        running.advance(block, refill)
    }
    #[inline(always)]
    fn reclaim(running: Self::Running, block: &mut Block<C>) -> Scratch<Self> {
        running.reclaim(block)
    }
}

impl<
    C: Kernel,
    E: Element,
    S: ConvertRows<E>,
    const KEYS: usize,
    const D: usize,
    const DS: usize,
    const STAGES: usize,
> KeyStages<C, SharedTile<E, KEYS, D>>
    for ConvertedRing<SharedTile<S, KEYS, DS>, SharedTile<E, KEYS, D>, STAGES, By<C>>
{
    type Stored = SharedTile<S, KEYS, DS>;
    const FACTOR: f32 = S::FACTOR;
    const AHEAD: u32 = STAGES as u32 - 1;
    type Running = ConvertedStages<SharedTile<S, KEYS, DS>, SharedTile<E, KEYS, D>, STAGES, By<C>>;
    type Spent = Self;
    #[inline(always)]
    fn start(self, copy: impl FnMut(u32, &Slot<Self::Stored, C>)) -> Self::Running {
        ConvertedRing::start(self, copy)
    }
    #[inline(always)]
    fn next<'s>(
        running: &'s mut Self::Running,
        block: &mut Block<C>,
        refill: impl FnOnce(&Slot<Self::Stored, C>, &Block<C>),
    ) -> Ready<'s, SharedTile<E, KEYS, D>>
    where
        E: 's,
    {
        running.advance(block, refill, |to, stored, block| to.convert_rows(stored, block))
    }
    #[inline(always)]
    fn reclaim(running: Self::Running, block: &mut Block<C>) -> Scratch<Self> {
        running.reclaim(block)
    }
}
