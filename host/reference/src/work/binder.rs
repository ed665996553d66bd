//! The buffers of a problem's request. The request names each buffer where it uses the buffer.
use super::{Buffer, GUARD, Input, POISON};

/// Memory that does not exist begins here. GPUs and the simulator have shorter addresses.
const NOWHERE: u64 = 1 << 60;

/// Gives a request the addresses of its buffers, and collects their contents. A problem adds its buffers in
/// the same order for every binder.
pub struct Binder<'a> {
    /// The addresses of inputs and of outputs; `None` is memory that does not exist, at addresses that no
    /// driver returns.
    at: [Option<&'a [u64]>; 2],
    /// Numbers of inputs and of outputs that have an address.
    given: [usize; 2],
    round: usize,
    collects: Collects,
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<Buffer>,
}

/// The buffers whose contents a request states.
#[derive(PartialEq)]
enum Collects {
    Nothing,
    Changes,
    All,
}

impl<'a> Binder<'a> {
    /// Creates a binder for buffers at these addresses: inputs, and outputs. `None` is memory that does not
    /// exist.
    pub fn at(inputs: Option<&'a [u64]>, outputs: Option<&'a [u64]>) -> Self {
        let (at, inputs, outputs) = ([inputs, outputs], vec![], vec![]);
        Binder { at, given: [0; 2], round: 0, collects: Collects::Nothing, inputs, outputs }
    }

    /// Creates a binder that collects the contents before the first launch.
    pub(super) fn all() -> Self {
        Binder { collects: Collects::All, ..Self::at(None, None) }
    }

    /// Creates a binder that collects the inputs that change before the launch `round`.
    pub(super) fn changes(round: usize) -> Self {
        Binder { collects: Collects::Changes, round, ..Self::at(None, None) }
    }

    /// Returns the launch, of the launches of one plan, whose contents are collected.
    pub const fn round(&self) -> usize {
        self.round
    }

    fn next(&mut self, which: usize) -> u64 {
        let number = self.given[which];
        self.given[which] += 1;
        let nowhere = NOWHERE + ((2 * number + which) as u64) * (1 << 48);
        self.at[which].map_or(nowhere, |all| all[number])
    }

    /// Adds an input, and returns its address.
    pub fn input(&mut self, name: &str, bytes: impl FnOnce() -> Vec<u8>) -> u64 {
        self.add(|| Input::new(name, bytes()))
    }

    /// Adds an input of any size, and returns its address.
    pub fn add(&mut self, input: impl FnOnce() -> Input) -> u64 {
        self.inputs.extend((self.collects == Collects::All).then(input));
        self.next(0)
    }

    /// Adds an input whose content depends on [`Binder::round`], and returns its address.
    pub fn changing(&mut self, name: &str, bytes: impl FnOnce() -> Vec<u8>) -> u64 {
        self.inputs.extend((self.collects != Collects::Nothing).then(|| Input::new(name, bytes())));
        self.next(0)
    }

    /// Adds an output with its content before a launch, and returns its address.
    pub fn output(&mut self, name: &str, before: impl FnOnce() -> Vec<u8>) -> u64 {
        self.outputs.extend((self.collects == Collects::All).then(|| (name.into(), before())));
        self.next(1)
    }

    /// Adds an output of poison between guards, and returns its address behind the first guard.
    pub fn guarded(&mut self, name: &str, bytes: usize) -> u64 {
        self.output(name, || vec![POISON; bytes + 2 * GUARD]) + GUARD as u64
    }
}
