//! What can go wrong, in words that name the value and what would be right.

/// Why nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's request contradicts itself or the rules of this crate.
    #[error("invalid {what}: {value}; {expected}")]
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
    Unsupported {
        /// The feature that was asked for, with its value.
        feature: String,
        /// Why not, and what would be possible.
        reason: String,
    },
    /// The driver refused, or there is none.
    #[error("{call}: {reason}")]
    Driver {
        /// The driver's function, or what this crate was about to do with it.
        call: &'static str,
        /// The driver's error code (`CUresult`), where it gave one.
        code: Option<u32>,
        /// The driver's words.
        reason: String,
    },
}

impl Error {
    pub(crate) fn invalid(what: &'static str, value: impl ToString, expected: impl ToString) -> Self {
        Error::Invalid { what, value: value.to_string(), expected: expected.to_string() }
    }

    pub(crate) fn unsupported(feature: impl ToString, reason: impl ToString) -> Self {
        Error::Unsupported { feature: feature.to_string(), reason: reason.to_string() }
    }
}
