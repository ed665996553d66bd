//! Errors of commands and their exit codes.
use crate::words;
use ferroflash::plan::plan;
use ferroflash::{Capabilities, spec};
use reference::{Binder, LaunchOptions, TensorError, Work};
use std::fmt::Display;
use std::process::ExitCode;
use thiserror::Error;

/// The error of a command: one line with the problem and the remedy.
#[derive(Debug, Error)]
pub(super) enum Error {
    /// A result is wrong.
    #[error("{0}")]
    Wrong(String),
    /// The usage, a file or an input is invalid, or a feature is not supported.
    #[error("{0}")]
    Invalid(String),
    /// There is no device or no driver.
    #[error("{0}")]
    NoDevice(String),
    /// The device or its driver failed.
    #[error("{0}")]
    Device(String),
    /// A signal ended the command before it had done everything.
    #[error("{0}")]
    Ended(String),
}

impl From<TensorError> for Error {
    fn from(error: TensorError) -> Self {
        Error::Invalid(error.to_string())
    }
}

impl Error {
    /// Returns the error of a launch of this kernel on this problem.
    pub(super) fn of_launch(error: ferroflash::Error, kernel: &str, problem: impl Display) -> Self {
        match error.into() {
            Error::Device(text) => Error::Device(format!("{kernel}: {problem}: {text}")),
            other => Error::Invalid(format!("{kernel}: {problem}: {other}")),
        }
    }

    /// Returns the exit code, which `ferroflash --help` documents.
    pub(super) fn code(&self) -> u8 {
        match self {
            Error::Wrong(_) => 1,
            Error::Invalid(_) => 2,
            Error::NoDevice(_) => 3,
            Error::Device(_) => 4,
            Error::Ended(_) => 5,
        }
    }

    /// Returns the exit code for the process.
    pub(super) fn exit_code(&self) -> ExitCode {
        self.code().into()
    }

    /// Returns an error if none of these kernels ran. Each item says whether the kernel ran. The text names a
    /// card that the simulator can model and that runs all of these kernels. Returns `None` if some kernels
    /// ran.
    pub(super) fn nothing_ran<'a>(
        kernels: impl Iterator<Item = (&'a str, bool)> + Clone,
        device: impl Display,
    ) -> Option<Self> {
        if kernels.clone().any(|(_, ran)| ran) {
            return None;
        }
        let hint = card_of(|name| kernels.clone().any(|(own, _)| own == name))
            .map_or(String::new(), |name| format!("; --profile {name} simulates a GPU that runs them"));
        Some(Error::Invalid(format!("no kernel ran: {device} runs none of these kernels{hint}")))
    }

    /// Returns the error of a launch on a simulated card. If the card cannot run the named kernel, or any
    /// kernel for the problem, the error names a card that the simulator can model and that can.
    pub(super) fn of_simulator(
        error: ferroflash::Error,
        on: &Capabilities,
        config: Option<&str>,
        work: &dyn Work,
    ) -> Self {
        if !matches!(error, ferroflash::Error::Unsupported { .. }) {
            return error.into();
        }
        let solves = |on: &Capabilities| {
            plan(&work.request(&mut Binder::at(None, None), LaunchOptions::default()), on).is_ok()
        };
        let mut cards = Capabilities::PROFILES.iter().rev();
        let card = match config {
            Some(name) => {
                let mut kernels = spec::kernels().filter(|kernel| kernel.symbol == name);
                kernels.find(|kernel| on.runs(kernel).is_err()).and_then(|_| card_of(|symbol| symbol == name))
            }
            None if solves(on) => None,
            None => cards.find(|(_, card)| solves(card)).map(|(name, _)| *name),
        };
        match card {
            None => error.into(),
            Some(name) => {
                let why = words::of(&error);
                Error::Invalid(format!("{why}; --profile {name} simulates a GPU that runs it"))
            }
        }
    }
}

/// Returns the name of a card that the simulator can model and that runs all kernels with these names.
fn card_of(is_named: impl Fn(&str) -> bool) -> Option<&'static str> {
    let all: Vec<_> = spec::kernels().filter(|kernel| is_named(kernel.symbol)).collect();
    let runs = |card: &Capabilities| !all.is_empty() && all.iter().all(|kernel| card.runs(kernel).is_ok());
    Capabilities::PROFILES.iter().rev().find(|(_, card)| runs(card)).map(|(name, _)| *name)
}
