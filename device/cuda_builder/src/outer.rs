//! The cargo that runs this process, as a build script or a task: its environment variables, whether it may
//! use the network, and its jobserver.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, fs, io};

use jobserver::{Acquired, Client, HelperThread};

/// A command of cargo without the outer cargo's environment variables.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os().filter(|(name, _)| has_set(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command
}

/// The folder in which cargo runs for a crate outside of the outer program: cargo reads its configuration,
/// such as vendored sources, in the folders above it.
pub(crate) fn folder(manifest: &Path) -> PathBuf {
    let out = env::var_os("OUT_DIR").map(PathBuf::from);
    out.unwrap_or_else(|| manifest.parent().unwrap_or(manifest).to_owned())
}

/// Whether the outer cargo has set this environment variable. The inner cargo must not see such a variable.
fn has_set(name: &str) -> bool {
    const KEPT: [&str; 4] = ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_HTTP_CAINFO", "CARGO_HTTP_PROXY"];
    const OUTER: [&str; 12] = [
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTC",
        "RUSTDOC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_LINKER",
        "TARGET",
        "HOST",
        "OUT_DIR",
        "PROFILE",
        "NUM_JOBS",
    ];
    const MAKE: [&str; 4] = ["MAKEFLAGS", "MFLAGS", "DEBUG", "OPT_LEVEL"];
    let registry = name.starts_with("CARGO_REGISTR") || name.starts_with("CARGO_SOURCE_");
    let cargo = (name.starts_with("CARGO_") || name == "CARGO") && !registry && !KEPT.contains(&name);
    cargo || OUTER.contains(&name) || MAKE.contains(&name) || name.starts_with("CLIPPY_")
}

/// Whether the outer cargo may not use the network: by the environment variable, or by an argument, of which
/// cargo does not tell a build script.
pub(crate) fn is_offline() -> bool {
    let is_set = env::var_os("CARGO_NET_OFFLINE").is_some_and(|value| value == "true" || value == "1");
    is_set || parent().is_some_and(|arguments| is_offline_cargo(&arguments))
}

/// The command line of the parent process, with a zero byte behind each argument; `None` if the system does
/// not show it.
#[cfg(unix)]
fn parent() -> Option<Vec<u8>> {
    fs::read(format!("/proc/{}/cmdline", std::os::unix::process::parent_id())).ok()
}

#[cfg(not(unix))]
fn parent() -> Option<Vec<u8>> {
    None
}

fn is_offline_cargo(arguments: &[u8]) -> bool {
    let mut arguments = arguments.split(|byte| *byte == 0).take_while(|argument| *argument != b"--");
    let is_cargo = arguments.next().is_some_and(|program| program.ends_with(b"cargo"));
    is_cargo && arguments.any(|argument| [&b"--offline"[..], b"--frozen"].contains(&argument))
}

/// The jobserver of the outer cargo or make, if there is one.
fn jobserver() -> Option<&'static Client> {
    static CLIENT: OnceLock<Option<Client>> = OnceLock::new();
    // SAFETY: the outer process opened the descriptors in the environment variable for this process, which
    // does nothing else with them.
    CLIENT.get_or_init(|| unsafe { Client::from_env() }).as_ref()
}

/// Lets `command` use the outer jobserver.
pub(crate) fn share_jobserver(command: &mut Command) {
    if let Some(client) = jobserver() {
        client.configure(command);
    }
}

/// Permissions of the outer jobserver to run further compilers beside the first one, which needs none.
pub(crate) struct Tokens {
    /// Asks the jobserver, until it is dropped.
    helper: Mutex<Option<HelperThread>>,
    received: Mutex<Receiver<io::Result<Acquired>>>,
    is_free: bool,
}

/// A permission, which returns to the jobserver when it is dropped.
pub(crate) struct Token {
    _acquired: Option<Acquired>,
}

impl Tokens {
    /// Asks the outer jobserver for `count` tokens. Without a jobserver, every token is free.
    pub(crate) fn ask(count: usize) -> Self {
        Self::of(jobserver(), count)
    }

    fn of(client: Option<&Client>, count: usize) -> Self {
        let (send, received) = mpsc::channel();
        let helper = client.and_then(|client| {
            // A receiver that has gone wants no tokens.
            let helper = client.clone().into_helper_thread(move |token| _ = send.send(token)).ok()?;
            (0..count).for_each(|_| helper.request_token());
            Some(helper)
        });
        Self { is_free: client.is_none(), helper: Mutex::new(helper), received: Mutex::new(received) }
    }

    /// Waits for a token; `None` after [`end`](Self::end).
    pub(crate) fn next(&self) -> Option<Token> {
        if self.is_free {
            return Some(Token { _acquired: None });
        }
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner).recv();
        received.ok()?.ok().map(|acquired| Token { _acquired: Some(acquired) })
    }

    /// Asks for no more tokens, because no work is left.
    pub(crate) fn end(&self) {
        drop(self.helper.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offline_is_an_argument_of_cargo() {
        let lines: [(&[u8], bool); 5] = [
            (b"/usr/bin/cargo\0build\0--offline\0", true),
            (b"cargo\0--frozen\0test\0", true),
            (b"cargo\0run\0--\0--offline\0", false),
            (b"make\0--offline\0", false),
            (b"", false),
        ];
        for (arguments, is_it) in lines {
            assert_eq!(is_offline_cargo(arguments), is_it, "{}", String::from_utf8_lossy(arguments));
        }
    }

    #[test]
    fn the_jobserver_limits_the_compilers() {
        // `-j 3`: two tokens beside the one that each process has.
        let client = Client::new(2).unwrap();
        let tokens = Tokens::of(Some(&client), 7);
        let held = [tokens.next().unwrap(), tokens.next().unwrap()];
        tokens.end();
        assert!(tokens.next().is_none(), "no third token");
        drop(held);
        assert_eq!(client.available().unwrap(), 2, "all are back");
        // `-j 1`.
        let tokens = Tokens::of(Some(&Client::new(0).unwrap()), 1);
        tokens.end();
        assert!(tokens.next().is_none());
        assert!(Tokens::of(None, 0).next().is_some());
    }
}
