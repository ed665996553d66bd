//! Variants with tables in cudarc's slices.
use super::memory::{Memory, StreamGuards};
use crate::Error;
use crate::request::AttentionRequest;
use crate::variant::{Variant, WithVariant};
use ::cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use spec::{Integers, MaskMarker};
use std::fmt;
use std::sync::Arc;

/// Most tables of a variant.
const MOST: usize = 4;

/// A table of a variant's parameters: `i32`, `u32` or `f32`. Convert a reference to a slice or a view `into`
/// it.
#[derive(Clone, Copy)]
#[must_use]
pub struct Table<'a>(Kind<'a>);

#[derive(Clone, Copy)]
enum Kind<'a> {
    Signed(&'a dyn Memory<i32>),
    Unsigned(&'a dyn Memory<u32>),
    Floats(&'a dyn Memory<f32>),
}

macro_rules! tables {
    ($($kind:ident: $type:ty),*) => {$(
        tables!(from $kind: CudaSlice<$type>, CudaView<'_, $type>, CudaViewMut<'_, $type>);
    )*};
    (from $kind:ident: $($memory:ty),*) => {$(
        impl<'a> From<&'a $memory> for Table<'a> {
            fn from(data: &'a $memory) -> Self {
                Table(Kind::$kind(data))
            }
        }
    )*};
}
tables!(Signed: i32, Unsigned: u32, Floats: f32);

impl<'a> Table<'a> {
    /// The words of the table, taken for a stream.
    fn on<const GUARDS: usize>(self, guards: &mut StreamGuards<'a, GUARDS>) -> Result<Integers, Error> {
        let (base, elements) = match self.0 {
            Kind::Signed(data) => guards.read("variant.table", data)?,
            Kind::Unsigned(data) => guards.read("variant.table", data)?,
            Kind::Floats(data) => guards.read("variant.table", data)?,
        };
        // Kernels clamp indices to the table's elements, so a table has at least one.
        match u32::try_from(elements) {
            Ok(count) if count > 0 => Ok(Integers { base, count, reserved: 0 }),
            _ => Err(Error::invalid("variant.table", elements, "a table has 1 to 2^32 - 1 elements")),
        }
    }
}

/// A function of a launch's tables and request: the variant with its parameters.
type Params = dyn Fn(&[Integers], &AttentionRequest<'_>) -> Result<WithVariant, Error> + Send + Sync;

/// A [variant](mod@crate::variant) of your own for safe launches, with the function that makes its parameters
/// of its tables.
///
/// ```no_run
/// # use cudarc::driver::{CudaSlice, CudaStream};
/// # use ferroflash::Error;
/// # use ferroflash::cudarc::{FlashAttention, Inputs, OwnVariant, ScratchMemory, Tensor};
/// # use ferroflash::spec::{And, Causal, Scored, Sink, SinkParams};
/// # use ferroflash::variant::Variant;
/// # use half::f16;
/// # use std::sync::Arc;
/// # fn run(
/// #     attention: &FlashAttention, stream: &Arc<CudaStream>, scratch: &mut ScratchMemory,
/// #     q: Tensor<'_, f16>, kv: Tensor<'_, f16>, logits: &CudaSlice<f32>,
/// #     variant: &'static Variant<Scored<Causal, Sink>>,
/// # ) -> Result<(), Error> {
/// // SAFETY: the build script compiled the kernels from these types. The functions load one logit per query
/// // head from the table, which has them.
/// let own = unsafe {
///     OwnVariant::new(variant, |tables, request| match tables {
///         [logits] if logits.count as usize >= request.q.shape[2] => {
///             Ok(And::new((), SinkParams { base: logits.base }))
///         }
///         _ => Err(Error::invalid("tables", tables.len(), "pass one table with a logit per query head")),
///     })
/// };
/// let tables = [logits.into()];
/// let inputs = Inputs::dense(q, kv, kv).variant(&own, &tables);
/// let o = attention.attend(stream, &inputs, scratch)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct OwnVariant(Arc<Params>);

impl OwnVariant {
    /// A variant whose parameters `params` makes of the launch's tables, in their order, and of its request
    /// without the variant. Safe code passes any number of tables of any length: `params` returns an error
    /// if they do not fit.
    ///
    /// # Safety
    /// - The PTX of the variant's kernels was compiled from their types.
    /// - With the parameters that `params` returns, the variant's functions load only from the tables, within
    ///   their elements. (`GlobalInts` clamps indices. Functions that do not clamp, such as `Sink`'s one
    ///   logit per query head, need tables of that length: `params` compares it with the request.)
    pub unsafe fn new<M, F>(variant: &'static Variant<M>, params: F) -> Self
    where
        M: MaskMarker,
        F: Fn(&[Integers], &AttentionRequest<'_>) -> Result<M::Params, Error> + Send + Sync + 'static,
    {
        OwnVariant(Arc::new(move |tables, request| Ok(variant.with(params(tables, request)?))))
    }

    /// The variant with its parameters, whose tables are taken for a stream.
    pub(super) fn on<'a, const GUARDS: usize>(
        &self,
        tables: &[Table<'a>],
        request: &AttentionRequest<'_>,
        guards: &mut StreamGuards<'a, GUARDS>,
    ) -> Result<WithVariant, Error> {
        if tables.len() > MOST {
            let expected = format_args!("a variant has at most {MOST} tables; join some of them");
            return Err(Error::invalid("variant.tables", tables.len(), expected));
        }
        let mut words = [Integers { base: 0, count: 0, reserved: 0 }; MOST];
        for (words, table) in words.iter_mut().zip(tables) {
            *words = table.on(guards)?;
        }
        (self.0)(&words[..tables.len()], request)
    }
}

impl fmt::Debug for OwnVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnVariant").finish_non_exhaustive()
    }
}
