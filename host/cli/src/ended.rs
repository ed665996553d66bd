//! Ends long commands early if a signal asks for it. The commands report their results so far.
use super::error::Error;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A second signal within this time after the first does not end the process, because `timeout` sends its
/// signal to the process and to its group.
const TOGETHER: Duration = Duration::from_secs(1);

/// The name of the thread that receives signals. From its start on, no signal is lost. The handlers are
/// installed a moment earlier, and a signal in that moment has no effect.
const THREAD: &str = "signals";

static ASKED: AtomicBool = AtomicBool::new(false);

/// Installs handlers. The first SIGTERM or SIGINT asks the command to end with a partial report. A signal
/// that arrives more than [`TOGETHER`] later ends the process.
pub(super) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // If no handler can be installed, a signal ends the process, as it does by default.
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
        let receive = move || {
            let mut first = None;
            for signal in signals.forever() {
                let begun: &mut Instant = first.get_or_insert_with(Instant::now);
                if ASKED.swap(true, Ordering::Relaxed) && begun.elapsed() > TOGETHER {
                    std::process::exit(128 + signal);
                }
            }
        };
        thread::Builder::new().name(THREAD.into()).spawn(receive).expect("the system starts a thread");
    });
}

/// Returns whether the command was asked to end.
pub(super) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// The error of a command that ended early. `done` says how much it has done.
pub(super) fn error(done: &str) -> Error {
    Error::Ended(format!("{done}: a signal ended the command; the report has the results so far"))
}

/// Returns the error of a command that ended early, after `done` of `all` items `what`. Returns `None` if the
/// command has done all items.
pub(super) fn early(done: usize, all: usize, what: &str) -> Option<Error> {
    (asked() && done < all).then(|| error(&format!("{done} of {all} {what}")))
}
