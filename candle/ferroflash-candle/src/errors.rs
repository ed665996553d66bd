//! Conversion of FerroFlash's errors into candle's.
use ferroflash::Error;
use std::fmt::Display;

/// Converts an error to candle's error type. `downcast_ref` finds the original error.
pub(crate) fn refused(error: impl std::error::Error + Send + Sync + 'static) -> candle::Error {
    candle::Error::Cuda(Box::new(error)).bt()
}

/// Returns the error of a valid but unsupported request.
pub(crate) fn unsupported(feature: impl Display, reason: impl Display) -> candle::Error {
    refused(Error::unsupported(feature, reason))
}

/// Returns the error of an invalid value.
pub(crate) fn invalid(what: &'static str, value: impl Display, expected: impl Display) -> candle::Error {
    refused(Error::invalid(what, value, expected))
}
