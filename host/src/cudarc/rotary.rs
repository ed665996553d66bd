//! Rotary embedding in an append: angles, positions and queries are cudarc's slices.
use super::append::{at_tokens, latent};
use super::cache::PagesMut;
use super::front::FlashAttention;
use super::memory::{Element, Memory, Number, SlotNumber, StreamGuards};
use super::tensor::{Tensor, TensorMut};
use crate::Error;
use crate::request::{self, Positions, RotaryStyle, TensorView};
use ::cudarc::driver::CudaStream;
use std::sync::Arc;

/// Queries that rotate beside the new keys.
enum Queries<'a, T> {
    None,
    InPlace(TensorMut<'a, T>),
    Apart(Tensor<'a, T>, TensorMut<'a, T>),
}

/// Rotary embedding of an append, like [`request::Rotary`]: queries of `T`, angles of `A` (f32 or `T`),
/// positions of `N`.
#[must_use]
pub struct Rotary<'a, T, A, N> {
    cos: &'a dyn Memory<A>,
    /// `None` if the sines follow the cosines in each row of `cos`.
    sin: Option<&'a dyn Memory<A>>,
    /// Rows of the table, and numbers per row.
    shape: [usize; 2],
    positions: &'a dyn Memory<N>,
    style: RotaryStyle,
    first_column: usize,
    queries: Queries<'a, T>,
}

impl<'a, T: Element, A: Number, N: SlotNumber> Rotary<'a, T, A, N> {
    /// Creates a rotation of the first columns, in halves, without queries. `cos` and `sin` are contiguous
    /// `[positions, dims / 2]`. Token `t` has the angles of row `positions[t]`.
    pub fn new(
        cos: &'a impl Memory<A>,
        sin: &'a impl Memory<A>,
        shape: [usize; 2],
        positions: &'a impl Memory<N>,
    ) -> Self {
        let (style, queries) = (RotaryStyle::Halves, Queries::None);
        Rotary { cos, sin: Some(sin), shape, positions, style, first_column: 0, queries }
    }

    /// Creates the rotation of [`Rotary::new`] with one contiguous table `[positions, dims]`: each row has
    /// the cosines, then the sines.
    #[doc(alias = "cos_sin_cache")]
    pub fn cos_sin(table: &'a impl Memory<A>, shape: [usize; 2], positions: &'a impl Memory<N>) -> Self {
        let (style, queries) = (RotaryStyle::Halves, Queries::None);
        Rotary { cos: table, sin: None, shape, positions, style, first_column: 0, queries }
    }

    /// Sets the columns that rotate together.
    pub fn style(self, style: RotaryStyle) -> Self {
        Rotary { style, ..self }
    }

    /// Sets the first column that rotates, a multiple of 8.
    pub fn first_column(self, first_column: usize) -> Self {
        Rotary { first_column, ..self }
    }

    /// Rotates the queries `q`, `[1, tokens, heads, head_dim]`, into `rotated`.
    pub fn queries(self, q: Tensor<'a, T>, rotated: TensorMut<'a, T>) -> Self {
        Rotary { queries: Queries::Apart(q, rotated), ..self }
    }

    /// Rotates the queries `q`, `[1, tokens, heads, head_dim]`, in place.
    pub fn queries_in_place(self, q: TensorMut<'a, T>) -> Self {
        Rotary { queries: Queries::InPlace(q), ..self }
    }

    fn on<'t, const MOST: usize>(self, guards: &mut StreamGuards<'t, MOST>) -> Result<request::Rotary, Error>
    where
        'a: 't,
    {
        let (address, elements) = guards.read("rotary.positions", self.positions)?;
        let positions = Positions { address, elements, wide: N::WIDE };
        let [rows, columns] = self.shape;
        let view = |(at, elements)| TensorView::bshd(at, elements, A::DTYPE, [1, rows, 1, columns]);
        let cos = view(guards.read("rotary.cos", self.cos)?);
        let rotary = match self.sin {
            Some(sin) => request::Rotary::new(cos, view(guards.read("rotary.sin", sin)?), positions),
            None => request::Rotary::cos_sin(cos, positions),
        };
        let rotary = rotary.style(self.style).first_column(self.first_column);
        Ok(match self.queries {
            Queries::None => rotary,
            Queries::InPlace(q) => {
                let q = q.on(guards, "q")?;
                rotary.queries(q, q)
            }
            Queries::Apart(q, rotated) => {
                let q = q.on(guards, "q")?;
                rotary.queries(q, rotated.on(guards, "rotary.rotated")?)
            }
        })
    }
}

impl FlashAttention {
    /// Rotates `k` and writes `k` and `v` to a KV cache, like [`FlashAttention::append`]. Rotates queries in
    /// the same launch. Allocates nothing.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    #[doc(alias = "rotary_embedding")]
    #[doc(alias = "apply_rope_with_cos_sin_cache")]
    pub fn append_rotary<T: Element, C: Number, N: SlotNumber, A: Number, P: SlotNumber>(
        &self,
        stream: &Arc<CudaStream>,
        k: Tensor<'_, T>,
        v: Tensor<'_, T>,
        pages: PagesMut<'_, C>,
        slots: &impl Memory<N>,
        rotary: Rotary<'_, T, A, P>,
    ) -> Result<(), Error> {
        let mut guards: StreamGuards<'_> = StreamGuards::on(self, stream)?;
        let append = at_tokens(&mut guards, k, v, pages, slots)?.rotary(rotary.on(&mut guards)?);
        let plan = self.attention.plan(&append)?;
        // SAFETY: `guards` holds every buffer of the request for this stream.
        unsafe { guards.launch(&plan, &append) }
    }

    /// Rotates `rows` and writes them to a latent cache, like [`FlashAttention::append_latent`]: set the
    /// [first column](Rotary::first_column) to the number of the values' columns. Rotates queries in the same
    /// launch. Allocates nothing.
    ///
    /// # Errors
    /// Returns the errors of [`FlashAttention::attend`].
    pub fn append_latent_rotary<T: Element, N: SlotNumber, A: Number, P: SlotNumber>(
        &self,
        stream: &Arc<CudaStream>,
        rows: Tensor<'_, T>,
        pages: PagesMut<'_, T>,
        slots: &impl Memory<N>,
        rotary: Rotary<'_, T, A, P>,
    ) -> Result<(), Error> {
        let mut guards: StreamGuards<'_> = StreamGuards::on(self, stream)?;
        let append = latent(&mut guards, rows, pages, slots)?.rotary(rotary.on(&mut guards)?);
        let plan = self.attention.plan(&append)?;
        // SAFETY: `guards` holds every buffer of the request for this stream.
        unsafe { guards.launch(&plan, &append) }
    }
}
