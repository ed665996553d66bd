//! FerroFlash's errors as candle's.
use ferroflash::Error;
use std::fmt::Display;

/// As one of candle's, where it can be found by `downcast_ref`.
pub(crate) fn refused(error: Error) -> candle::Error {
    candle::Error::Cuda(Box::new(error)).bt()
}

/// Of a request that makes sense.
pub(crate) fn unsupported(feature: impl Display, reason: impl Display) -> candle::Error {
    refused(Error::unsupported(feature, reason))
}

/// Of a value that contradicts others.
pub(crate) fn invalid(what: &'static str, value: impl Display, expected: impl Display) -> candle::Error {
    refused(Error::invalid(what, value, expected))
}
