//! Writes KV caches, and merges attention states.
pub mod append;
pub mod merge;
pub mod rotary;
