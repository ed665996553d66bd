//! Attention on the CPU: what the kernels are held to.
//!
//! One algorithm in two arithmetics. [`exact`] computes in f64 on the inputs as they are, rounded to f16 or
//! bf16. [`naive`] does the same with every intermediate result rounded to the inputs' type, as an
//! implementation in separate 16-bit steps does. The difference of the two measures what the type can be
//! asked for, and [`Reference::judge`] asks for it: FlashAttention's rule.
//!
//! The whole problem space of the kernels is here: f16 and bf16, grouped heads, unequal lengths, windows,
//! softcap, rows with no key, any strides. [`Memory`] lays a problem out as a device would have it, and
//! [`Loaded`] runs it there.
mod alibi;
mod append;
mod arithmetic;
mod attention;
mod bounds;
mod cases;
mod cycled;
mod decode;
pub mod e4m3;
mod extras;
pub mod fuzz;
mod inputs;
mod masks;
mod memory;
mod merge;
mod packed;
mod runner;
mod scales;
mod sinks;
mod soak;
mod subject;
mod tensor;
mod told;
mod tolerance;
mod work;

pub use alibi::Slopes;
pub use append::{AppendCase, AppendMemory, Lies, Scales, append, append_edges};
pub use arithmetic::unit_roundoff;
pub use attention::{Inputs, Outputs, exact, naive};
pub use bounds::{Bounds, score_limit};
pub use cases::{Case, Values, edges, grid, headline, reproducer, soak};
pub use decode::{DecodeCase, DecodeMemory, DecodeOutcome, LoadedDecode, Pages, decode_edges, paged_edges};
pub use extras::{BiasTensor, BitsTensor, Extras};
pub use inputs::Random;
pub use memory::{Layout, Memory, PEAK, Place};
pub use merge::{Lie, MergeCase, MergeMemory, merge, merge_edges};
pub use packed::{Lengths, Sequences};
pub use runner::{Loaded, Outcome};
pub use soak::Soak;
pub use subject::{Subject, Task, subjects, unfit};
pub use tensor::{HostTensor, TensorError};
pub use told::Told;
pub use tolerance::{Reference, Verdict, Worst};
pub use work::{Asked, Input, Judge, Judgement, OnDevice, Plans, Ready, Room, Rows, Rule, Work, Written};
