//! The form in which a library embeds PTX and machine code.
//!
//! [`lzma`] compresses any bytes. [`numbers`] rewrites PTX text, so that LZMA compresses the text to half the
//! size. Build scripts compress (feature `compress`); libraries decompress at run time.

pub mod lzma;
pub mod numbers;
