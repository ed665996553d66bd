//! Errors of commands and their exit codes.
use crate::words;
use ferroflash::plan::{Problem, explain};
use ferroflash::request::Scratch;
use ferroflash::{Capabilities, spec};
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

impl Error {
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
        problem: Option<&Problem>,
    ) -> Self {
        let cannot_run = matches!(error, ferroflash::Error::Unsupported { .. });
        let mut kernels = spec::kernels().filter(|kernel| cannot_run && config == Some(kernel.symbol));
        let kernel = kernels.find(|kernel| on.runs(kernel).is_err());
        let card = kernel.and_then(|kernel| card_of(|name| name == kernel.symbol));
        let solves = |p: &Problem, on| explain(p, on, Scratch::Fastest).is_ok();
        let of_problem = problem.filter(|p| cannot_run && config.is_none() && !solves(p, on)).and_then(|p| {
            let mut cards = Capabilities::PROFILES.iter().rev();
            cards.find(|(_, card)| solves(p, card)).map(|(name, _)| *name)
        });
        match card.or(of_problem) {
            Some(name) => Error::Invalid(format!(
                "{}; --profile {name} simulates a GPU that runs it",
                words::of(&error)
            )),
            None => error.into(),
        }
    }
}

/// Returns the name of a card that the simulator can model and that runs all kernels with these names.
fn card_of(is_named: impl Fn(&str) -> bool) -> Option<&'static str> {
    let all: Vec<_> = spec::kernels().filter(|kernel| is_named(kernel.symbol)).collect();
    let runs = |card: &Capabilities| !all.is_empty() && all.iter().all(|kernel| card.runs(kernel).is_ok());
    Capabilities::PROFILES.iter().rev().find(|(_, card)| runs(card)).map(|(name, _)| *name)
}
