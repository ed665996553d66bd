//! The error type: each error names the field, its value and the requirement.
use std::fmt;
use std::sync::Arc;

/// The reason why a request was not launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request contradicts itself or a rule of this crate.
    #[error("invalid {what}: {value}; {expected}")]
    #[non_exhaustive]
    Invalid {
        /// The name of the field, for example `q.strides` or `scale`.
        what: &'static str,
        /// The invalid value.
        value: String,
        /// The requirement.
        expected: String,
    },
    /// The request makes sense, but this crate or this device cannot run it.
    #[error("not supported: {feature}: {reason}")]
    #[non_exhaustive]
    Unsupported {
        /// The requested feature, with its value.
        feature: String,
        /// The reason, and an alternative.
        reason: String,
    },
    /// The driver failed, or there is no driver.
    #[error("{call}: {source}")]
    #[non_exhaustive]
    Driver {
        /// The name of the driver's function, or of this crate's step.
        call: &'static str,
        /// The driver's error code (`CUresult`), if any.
        code: Option<u32>,
        /// The driver's own error.
        source: Cause,
    },
}

impl Error {
    /// Returns an error: the field `what` has `value`; `expected` states the requirement.
    pub fn invalid(what: &'static str, value: impl ToString, expected: impl ToString) -> Self {
        Error::Invalid { what, value: value.to_string(), expected: expected.to_string() }
    }

    /// Returns an error: `feature` is not supported, for this `reason`.
    pub fn unsupported(feature: impl ToString, reason: impl ToString) -> Self {
        Error::Unsupported { feature: feature.to_string(), reason: reason.to_string() }
    }

    /// Returns an error: `call` failed; `source` is the cause, an error or text.
    pub fn driver(
        call: &'static str,
        code: Option<u32>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Error::Driver { call, code, source: Cause(source.into().into()) }
    }
}

/// Another library's error, unchanged. This error is the [`std::error::Error::source`] of [`Error::Driver`],
/// and `downcast_ref` returns the library's own type. Two causes are equal if their messages are equal.
#[derive(Clone)]
pub struct Cause(Arc<dyn std::error::Error + Send + Sync>);

impl std::ops::Deref for Cause {
    type Target = dyn std::error::Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for Cause {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn a_drivers_error_is_kept_whole() {
        let theirs = || "x".parse::<u32>().expect_err("no number");
        let error = Error::driver("cuInit", Some(1), theirs());
        assert_eq!(error.to_string(), format!("cuInit: {}", theirs()));
        let source = error.source().expect("a cause");
        assert_eq!(source.downcast_ref(), Some(&theirs()), "its own type");
        assert_eq!(error, Error::driver("cuInit", Some(1), theirs().to_string()));
        assert_ne!(error, Error::driver("cuInit", Some(1), "other words"));
        assert!(Error::invalid("scale", 0, "above 0").source().is_none());
    }
}
