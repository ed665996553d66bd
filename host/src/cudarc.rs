//! Safe attention functions on `cudarc`'s slices and streams (feature `cudarc`).
//!
//! | to compute | function |
//! |---|---|
//! | attention, with everything that this crate supports | [`FlashAttention::attend`] on [`Inputs`] |
//! | masks and scores of your own | [`Inputs::own`] with an [`OwnVariant`] |
//! | O and the log-sum-exp (LSE) | [`FlashAttention::attend_with_lse`] |
//! | O and other outputs of rows | [`FlashAttention::attend_with`] |
//! | O, and outputs of rows, in your memory | [`FlashAttention::attend_into`] |
//! | attention with candle-flash-attn's names and arguments | [`FlashAttention::flash_attn`] and its siblings |
//! | new keys and values of a KV cache | [`FlashAttention::append`] |
//! | a merge of partial states | [`FlashAttention::merge`] |
//! | gradients of Q, K and V (feature `training`) | [`FlashAttention::backward`] |
//! | these gradients in your memory, with a gradient of the LSE | [`FlashAttention::backward_into`] |
//!
//! A request names its memory by [`Slice`]s, which have no element type. The constructors `of` of the parts
//! of a request take slices, and the parts' other methods are those of [`crate::request`].
//!
//! Functions that take [`Inputs`] also take a [`ScratchMemory`]. Functions with candle-flash-attn's names
//! have its arguments and allocate scratch memory per call.
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use ferroflash::cudarc::{FlashAttention, Inputs, ScratchMemory, Tensor};
//! use ferroflash::request::Mask;
//! use half::f16;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?;
//! let stream = context.default_stream();
//! let attention = FlashAttention::new(&context)?;
//! // 8 query heads on 2 key heads.
//! let q = stream.clone_htod(&vec![f16::ONE; 1000 * 8 * 64])?;
//! let kv = stream.clone_htod(&vec![f16::ONE; 1000 * 2 * 64])?;
//! let (q, kv) = (Tensor::of(&q, [1, 1000, 8, 64]), Tensor::of(&kv, [1, 1000, 2, 64]));
//! let o = attention.flash_attn::<f16>(&stream, q, kv, kv, 0.125, true)?; // a CudaSlice<f16> like q
//! // Attention with softcap, and the LSE of each row.
//! let mut scratch = ScratchMemory::new();
//! let inputs = Inputs::of(q, kv, kv).mask(Mask::Causal).softcap(30.0);
//! let (o, lse) = attention.attend_with_lse::<f16>(&stream, &inputs, &mut scratch)?;
//! # Ok(())
//! # }
//! ```
//!
//! One step of a server: `append` writes new keys and values to their slots, and one query of each of 4
//! sequences reads up to 512 pages of 16 keys. Lengths, slots and page indices stay on the device.
//!
//! ```no_run
//! use ferroflash::cudarc::{
//!     Append, Cache, FlashAttention, Integers, Pages, PagesMut, ScratchMemory, Tensor,
//! };
//! use ferroflash::request::Slots;
//! # use cudarc::driver::{CudaSlice, CudaStream};
//! # use half::bf16;
//! # use std::sync::Arc;
//! # fn step(
//! #     attention: &FlashAttention, stream: &Arc<CudaStream>, scratch: &mut ScratchMemory,
//! #     q: CudaSlice<bf16>,
//! #     kv: CudaSlice<bf16>, mut keys: CudaSlice<bf16>, mut values: CudaSlice<bf16>,
//! #     slots: CudaSlice<i64>, table: CudaSlice<u32>, lengths: CudaSlice<u32>,
//! # ) -> Result<CudaSlice<bf16>, ferroflash::Error> {
//! let shape = [1000, 16, 8, 128]; // pages, keys per page, key heads, head dim
//! let new = Tensor::of(&kv, [1, 4, 8, 128]);
//! let pages = PagesMut::of(&mut keys, &mut values, shape);
//! attention.append(stream, Append::new(new, new, pages, Slots::of(&slots)))?;
//! let (table, lengths) = (Integers::of(&table), Integers::of(&lengths));
//! let cache = Cache::paged(Pages::of(&keys, &values, shape), table, 512, lengths);
//! let q = Tensor::of(&q, [4, 1, 32, 128]);
//! // Keep `scratch` from step to step: the first step grows it.
//! attention.flash_attn_with_kvcache(stream, q, cache, 128f32.powf(-0.5), true, scratch)
//! # }
//! ```
//!
//! # What cudarc does not track
//! - *Graphs.* A `CudaGraph` keeps nothing alive that its launches use, and cudarc launches it from safe
//!   code. After a capture, this crate frees neither its kernels nor the memory of a captured
//!   [`ScratchMemory`]. The slices are yours: keep the slices of captured launches as long as the graph.
//!   Launch the graph where you could call the captured functions, in the order of the same stream.
//!   [Reserve](FlashAttention::reserve) the scratch memory before the capture.
//! - *Readers on several streams.* A slice remembers only its last reader. If two streams read a slice and
//!   your program then writes or frees it, cudarc waits only for the second stream. Make the second stream
//!   wait for the first (`CudaStream::join`). This applies to all work in safe cudarc, also to cudarc's
//!   copies.
mod attention;
mod backward;
mod candle;
mod front;
mod memory;
mod others;
mod plans;
mod scratch;
mod variant;
mod views;

pub use attention::{Inputs, RowSlices, WithOutputs};
pub use backward::Backward;
pub use front::FlashAttention;
pub use memory::{Element, Integer, Memory, MemoryMut, Number, Slice, SliceMut, SlotNumber, unsigned};
pub use scratch::ScratchMemory;
pub use variant::OwnVariant;
pub use views::{Append, Cache, Integers, Listed, Pages, PagesMut, State, Tensor, TensorMut, Turn};
