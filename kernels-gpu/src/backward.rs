//! Backward: the gradients of Q, K and V (FlashAttention-2, Dao 2023, algorithm 2), in three launches without
//! atomics. (Hopper's kernels have two of them in one, `hopper/backward.rs`.) With S = Q K^T, P = 2^(S scale
//! - LSE) and delta = the row sums of dO times O:
//!
//! | kernel | computes |
//! |---|---|
//! | [`delta`] | -LSE and delta of each query |
//! | [`dkdv`] | dV = P^T dO; dP = dO V^T; dS = P (dP - delta); dK = scale dS^T Q, for a block of keys |
//! | [`dq`] | dQ = scale dS K, for a block of queries |
//! | [`dsinks`] | the gradients of sinks, from the numbers of [`delta`] |
//! | [`dbias`] | the gradient of a bias, from dS of each pair of blocks ([`pair`]) |
//! | [`table`] | the gradient of a table that scores read, from the same |
//! | [`convert_dq`] | dQ of the sums in f32 that Hopper's kernel leaves |
//! | [`sum_heads`] | dK and dV, where several blocks share the query heads of a key head |
//!
//! [`dkdv`] computes transposed scores, S^T = K Q^T, so P^T and dS^T are the left operands of its products.
//! [`crate::variant::transposed`] exchanges the roles of queries and keys in masks and scores. [`gradient`]
//! has the arithmetic of P and dS for both kernels.
//!
//! An infinity or NaN in a row of Q or dO reaches the gradients of every key of the row's stages (0 times
//! infinity), and one in a row of K or V the dQ of every query of the key's stages.
pub mod convert_dq;
pub mod dbias;
pub mod delta;
pub mod dkdv;
pub mod dq;
pub mod dsinks;
pub mod gradient;
pub mod pair;
pub mod sequence;
pub mod sum_heads;
pub mod table;
