//! A ring computes between the beginning and the end of its transfers; no other form does.
use crate::world::{Case, LIMIT, Rank, on_ranks};
use context_parallel::{Comm, Form, Rows, Threads, Transfer, Transport};
use ferroflash::Error;
use ferroflash::driver::{Harness, SimDriver, SimStream};
use ferroflash::request::Scratch;
use ptx_sim::Options;
use std::cell::{Cell, RefCell};

/// A transport that writes down whether kernels have run between its operations.
struct Watch {
    rank: Threads,
    /// `start` and `finish`, and `run` between them.
    seen: RefCell<Vec<&'static str>>,
    /// Bytes to other ranks.
    sent: Cell<u64>,
}

impl Watch {
    fn see(&self, driver: &SimDriver, what: &'static str) {
        let has_run = driver.take_coverage().values().any(|(_, instructions)| *instructions > 0);
        let ran = has_run.then_some("run");
        self.seen.borrow_mut().extend(ran.into_iter().chain([what]));
    }
}

impl Transport<SimDriver> for Watch {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn ranks(&self) -> usize {
        self.rank.ranks()
    }

    unsafe fn start(&self, driver: &SimDriver, stream: &SimStream, all: &[Transfer]) -> Result<(), Error> {
        self.see(driver, "start");
        let bytes = all.iter().map(|transfer| match *transfer {
            Transfer::Send { to, bytes, .. } if to != self.rank() => bytes,
            _ => 0,
        });
        self.sent.set(self.sent.get() + bytes.sum::<u64>());
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.start(driver, stream, all) }
    }

    unsafe fn finish(&self, driver: &SimDriver, stream: &SimStream) -> Result<(), Error> {
        self.see(driver, "finish");
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.finish(driver, stream) }
    }

    unsafe fn clear(&self, driver: &SimDriver, of: &SimStream, start: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.clear(driver, of, start, bytes) }
    }

    unsafe fn write(&self, driver: &SimDriver, of: &SimStream, to: u64, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.write(driver, of, to, bytes) }
    }

    unsafe fn copy(
        &self,
        driver: &SimDriver,
        of: &SimStream,
        from: Rows,
        to: Rows,
        shape: [u64; 2],
    ) -> Result<(), Error> {
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.copy(driver, of, from, to, shape) }
    }
}

/// Runs a forward or a backward pass on three ranks, and returns what each transport has seen.
fn seen(form: Form, is_backward: bool) -> Vec<(String, u64)> {
    let case = Case { heads: [3, 3], ..Case::new("").packed(&[48], 3) };
    on_ranks(Threads::new(3, LIMIT), |index, transport| {
        let of = Rank::new(&case, index).expect("memory");
        let driver = of.attention.driver();
        let rank = Watch { rank: transport, seen: RefCell::default(), sent: Cell::new(0) };
        let comm = Comm::new(&of.attention, &rank, &SimStream);
        let forward = of.request.forward;
        let bytes = form.attention_workspace(&comm, &case.chunks, &forward).expect("bytes");
        let memory = driver.allocate(bytes as usize).expect("memory");
        let scratch = Scratch::workspace(driver.address(&memory), bytes);
        driver.set_options(Options { coverage: true, ..Options::default() });
        // SAFETY: the simulator checks every access.
        unsafe { form.attention(&comm, &case.chunks, &forward.scratch(scratch)) }.expect("runs");
        if is_backward {
            rank.see(driver, "end");
            rank.seen.borrow_mut().clear();
            rank.sent.set(0);
            let bytes = form.backward_workspace(&comm, &case.chunks, &of.request).expect("bytes");
            let memory = driver.allocate(bytes as usize).expect("memory");
            let scratch = Scratch::workspace(driver.address(&memory), bytes);
            // SAFETY: as above.
            unsafe { form.backward(&comm, &case.chunks, &of.request.scratch(scratch)) }.expect("runs");
        }
        rank.see(driver, "end");
        (rank.seen.take().join(" "), rank.sent.get())
    })
}

#[test]
fn a_ring_computes_beside_its_transfers() {
    let both = "start run finish";
    // Each rank sends K and V of its 16 positions twice: 3 heads of 64 columns, 2 bytes each.
    let sent = 2 * 2 * 16 * 3 * 64 * 2;
    for (seen, bytes) in seen(Form::Ring, false) {
        assert_eq!((&seen[..], bytes), (&format!("{both} {both} run end")[..], sent));
    }
    let mut all = 0;
    for (seen, bytes) in seen(Form::Ring, true) {
        // The gradients of the second step travel beside the third one, and those of the third at the end.
        assert_eq!(seen, format!("{both} {both} {both} start finish run end"));
        all += bytes;
    }
    // Of three pairs of ranks, one rank sends the gradients of half of the keys: it sees no others.
    assert_eq!(all, 3 * sent + 3 * sent * 3 / 4);
    for form in [Form::Gather, Form::Ulysses] {
        for (seen, _) in seen(form, false) {
            assert!(seen.starts_with("start finish run"), "{form:?}: {seen}");
        }
    }
}
