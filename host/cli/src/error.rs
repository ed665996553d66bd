//! Errors of commands and their exit codes.
use std::fmt::Display;
use std::process::ExitCode;
use thiserror::Error;

/// Why a command failed: one line that says what is wrong and what would be right.
#[derive(Debug, Error)]
pub(super) enum Error {
    /// A result is wrong.
    #[error("{0}")]
    Wrong(String),
    /// Usage, a file, an input, or a feature that is not supported.
    #[error("{0}")]
    Invalid(String),
    /// No device or no driver.
    #[error("{0}")]
    NoDevice(String),
    /// The device or its driver failed.
    #[error("{0}")]
    Device(String),
}

impl Error {
    /// Exit code, as documented in `ferroflash --help`.
    pub(super) fn code(&self) -> u8 {
        match self {
            Error::Wrong(_) => 1,
            Error::Invalid(_) => 2,
            Error::NoDevice(_) => 3,
            Error::Device(_) => 4,
        }
    }

    /// The same for the process.
    pub(super) fn exit_code(&self) -> ExitCode {
        self.code().into()
    }

    /// What a command ends with that checks kernels: the first of what was `found`, `count` in all; else that
    /// none of them `ran`.
    pub(super) fn first_of(
        found: &str,
        count: usize,
        first: Option<impl Display>,
        ran: bool,
        device: impl Display,
    ) -> Result<(), Self> {
        match first {
            Some(first) => Err(Error::Wrong(format!("{count} {found}, the first: {first}"))),
            None if !ran => Err(Error::Invalid(format!("no kernel of these can run on {device}"))),
            None => Ok(()),
        }
    }
}
