//! Variants with tables in cudarc's slices.
use super::memory::{Slice, StreamGuards};
use crate::Error;
use crate::request::{AttentionRequest, Memory, Resolve, ResolveVariant};
use crate::variant::{Variant, WithVariant};
use spec::{Integers, MaskMarker};
use std::fmt;
use std::sync::Arc;

/// Most tables of a variant.
const MOST: usize = 4;

/// Returns the words of a table, `i32`, `u32` or `f32`, held for a stream.
fn words<'a>(table: Slice<'a>, guards: &mut StreamGuards<'a>) -> Result<Integers, Error> {
    let (base, elements) = guards.resolve("variant.table", table, 4)?;
    // Kernels clamp indices to the table's elements, so a table has at least one.
    match u32::try_from(elements) {
        Ok(count) if count > 0 => Ok(Integers { base, count, reserved: 0 }),
        _ => Err(Error::invalid("variant.table", elements, "a table has 1 to 2^32 - 1 elements")),
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
/// # use ferroflash::cudarc::{FlashAttention, Inputs, OwnVariant, ScratchMemory, Slice, Tensor};
/// # use ferroflash::configuration::{And, Causal, Scored, Sink, SinkParams};
/// # use ferroflash::variant::Variant;
/// # use half::f16;
/// # use std::sync::Arc;
/// # fn run(
/// #     attention: &FlashAttention, stream: &Arc<CudaStream>, scratch: &mut ScratchMemory,
/// #     q: Tensor<'_>, kv: Tensor<'_>, logits: &CudaSlice<f32>,
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
/// let tables = [Slice::new(logits)];
/// let inputs = Inputs::of(q, kv, kv).own(&own, &tables);
/// let o = attention.attend::<f16>(stream, &inputs, scratch)?;
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
}

/// A variant, and its tables.
type Own<'a> = (&'a OwnVariant, &'a [Slice<'a>]);

impl<'t, 'a: 't> ResolveVariant<Own<'a>, Error> for StreamGuards<'t> {
    fn variant(
        &mut self,
        (variant, tables): Own<'a>,
        request: &AttentionRequest<'_>,
    ) -> Result<WithVariant, Error> {
        if tables.len() > MOST {
            let expected = format_args!("a variant has at most {MOST} tables; join some of them");
            return Err(Error::invalid("variant.tables", tables.len(), expected));
        }
        let mut all = [Integers { base: 0, count: 0, reserved: 0 }; MOST];
        for (words, table) in all.iter_mut().zip(tables) {
            *words = self::words(*table, self)?;
        }
        (variant.0)(&all[..tables.len()], request)
    }
}

impl<'a> Memory for Slice<'a> {
    type Variant = Own<'a>;

    fn behind(self, bytes: u64) -> Self {
        self.without(bytes)
    }
}

impl fmt::Debug for OwnVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnVariant").finish_non_exhaustive()
    }
}
