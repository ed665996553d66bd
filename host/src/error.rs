//! What can go wrong, in words that name the value and what would be right.
use std::fmt;
use std::sync::Arc;

/// Why nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's request contradicts itself or the rules of this crate.
    #[error("invalid {what}: {value}; {expected}")]
    #[non_exhaustive]
    Invalid {
        /// What is wrong, as the caller wrote it: `q.strides`, `scale`.
        what: &'static str,
        /// The value that is wrong.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// The request makes sense, but this crate or this device cannot do it.
    #[error("not supported: {feature}: {reason}")]
    #[non_exhaustive]
    Unsupported {
        /// The feature that was asked for, with its value.
        feature: String,
        /// Why not, and what would be possible.
        reason: String,
    },
    /// The driver refused, or there is none.
    #[error("{call}: {source}")]
    #[non_exhaustive]
    Driver {
        /// The driver's function, or what this crate was about to do with it.
        call: &'static str,
        /// The driver's error code (`CUresult`), where it gave one.
        code: Option<u32>,
        /// The driver's own error.
        source: Cause,
    },
}

impl Error {
    /// `what` is `value`, and should be as `expected` says.
    pub fn invalid(what: &'static str, value: impl ToString, expected: impl ToString) -> Self {
        Error::Invalid { what, value: value.to_string(), expected: expected.to_string() }
    }

    /// `feature` is not there, for this `reason`.
    pub fn unsupported(feature: impl ToString, reason: impl ToString) -> Self {
        Error::Unsupported { feature: feature.to_string(), reason: reason.to_string() }
    }

    /// `call` failed, for the reason that `source` says: an error, or words.
    pub fn driver(
        call: &'static str,
        code: Option<u32>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Error::Driver { call, code, source: Cause(source.into().into()) }
    }
}

/// Another library's error, kept whole: [`std::error::Error::source`] of [`Error::Driver`], which
/// `downcast_ref` takes back to its type. Two are equal where they say the same.
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
