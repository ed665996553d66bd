//! Attention on the CPU: the reference for kernels' results.
//!
//! One algorithm runs in two arithmetics. [`exact`] computes in f64 on the f16 or bf16 inputs. [`naive`]
//! rounds every intermediate result to the inputs' type, like an implementation in separate 16-bit steps. The
//! difference of the two results measures the accuracy that the type permits. [`Reference::judge`] derives
//! the tolerance from this difference, as FlashAttention's tests do.
//!
//! The reference covers every problem of the kernels: f16 and bf16, grouped heads, unequal lengths, windows,
//! softcap, rows without a key, any strides. [`Memory`] lays a problem out as in device memory, and
//! [`Loaded`] runs it on a device.
//!
//! [`GradientReference`] judges gradients by the same two arithmetics.
//!
//! [`verify`] judges kernels of a caller's [`variant`](mod@variant).
#[macro_use]
mod bytes;

mod alibi;
mod append;
mod arithmetic;
mod attention;
mod backward;
mod bounds;
mod case;
mod cases;
mod cycled;
mod device_lengths;
pub mod e4m3;
mod eight_bits;
mod extras;
pub mod fuzz;
mod inputs;
mod masks;
mod matmul;
mod memory;
mod merge;
mod place;
mod scales;
mod sequences;
mod shared;
mod sinks;
mod soak;
mod subject;
mod tensor;
mod tolerance;
pub mod variant;
mod work;

pub use alibi::Slopes;
pub use append::{AppendCase, AppendMemory, Lies, RotaryCase, Scales, append_edges};
pub use arithmetic::{scaled_e4m3, unit_roundoff, widen_e4m3, widen_int8};
pub use attention::{Inputs, Outputs, exact, naive};
pub use backward::{BackwardMemory, GradientReference, Gradients, Upstream, backward_edges, is_modified};
pub use bounds::{Bounds, score_limit};
pub use case::{Backward, Case, Pages};
pub use cases::{edges, grid, headline, paged_edges, reproducer, soak};
pub use device_lengths::DeviceLengths;
pub use extras::{BiasTensor, BitsTensor, Extras};
pub use inputs::Random;
pub use masks::{hides, one as one_mask};
pub use memory::{Loaded, Memory, Outcome, PEAK};
pub use merge::{Lie, MergeCase, MergeMemory, merge, merge_edges};
pub use place::{Layout, Place};
pub use sequences::Sequences;
pub use shared::Shared;
pub use soak::Soak;
pub use subject::{Subject, Task, carries_all, is_carried, lacks_kernel, subjects, subjects_with, unfit};
pub use tensor::{HostTensor, TensorError};
pub use tolerance::{ENOUGH_ELEMENTS, Reference, Rule, Verdict, Worst};
pub use variant::{verify, verify_against};
pub use work::{
    Binder, Input, Judge, Judgement, LaunchOptions, OnDevice, Ready, Rows, Work, Written, unguarded,
};
