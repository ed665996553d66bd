//! Ranks that disagree, ranks that end, and transports that fail: every rank gets an error, and none waits.
use crate::world::{Case, LIMIT, Rank, Results, all, on_ranks};
use context_parallel::{Chunks, Form, Rows, Threads, Transfer, Transport};
use ferroflash::driver::{SimDriver, SimStream};
use ferroflash::request::Mask;
use ferroflash::{DType, Error};
use reference::Random;
use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

/// The fault of a transport.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    /// An operation fails: the rank ends.
    Fails(usize),
    /// A message lacks its last byte.
    IsShort(usize),
    /// A message does not come.
    IsLost(usize),
    /// All messages are other bytes.
    IsGarbage,
}

struct Spoiled {
    rank: Threads,
    fault: Fault,
    /// Operations, or messages, until now.
    count: Cell<usize>,
}

impl Spoiled {
    fn new(rank: Threads, fault: Fault) -> Self {
        Spoiled { rank, fault, count: Cell::new(0) }
    }

    /// Returns the number of this operation or message.
    fn next(&self) -> usize {
        self.count.replace(self.count.get() + 1)
    }

    fn operation(&self) -> Result<(), Error> {
        match self.fault {
            Fault::Fails(at) if self.next() == at => Err(Error::driver("transport", None, "the end")),
            _ => Ok(()),
        }
    }

    fn message(&self, transfer: &Transfer) -> Option<Transfer> {
        let Transfer::Send { to, address, bytes } = *transfer else { return Some(*transfer) };
        match self.fault {
            Fault::IsLost(at) if self.next() == at => None,
            Fault::IsShort(at) if self.next() == at => Some(Transfer::Send { to, address, bytes: bytes - 1 }),
            _ => Some(*transfer),
        }
    }
}

impl Transport<SimDriver> for Spoiled {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn ranks(&self) -> usize {
        self.rank.ranks()
    }

    fn begin(&self, call: fmt::Arguments<'_>) -> Result<(), Error> {
        self.operation()?;
        self.rank.begin(call)
    }

    unsafe fn start(&self, driver: &SimDriver, stream: &SimStream, all: &[Transfer]) -> Result<(), Error> {
        self.operation()?;
        let spoiled: Vec<_> = all.iter().filter_map(|transfer| self.message(transfer)).collect();
        // SAFETY: the caller makes the promises. A message may only be shorter.
        unsafe { self.rank.start(driver, stream, &spoiled)? };
        let received = all.iter().filter_map(|transfer| match *transfer {
            Transfer::Receive { address, bytes, .. } => Some((address, bytes)),
            Transfer::Send { .. } => None,
        });
        for (address, bytes) in received.filter(|_| self.fault == Fault::IsGarbage) {
            let mut random = Random::new(address ^ bytes);
            let garbage: Vec<u8> = (0..bytes).map(|_| random.bits() as u8).collect();
            driver.write(address, &garbage)?;
        }
        Ok(())
    }

    unsafe fn finish(&self, driver: &SimDriver, stream: &SimStream) -> Result<(), Error> {
        self.operation()?;
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.finish(driver, stream) }
    }

    unsafe fn clear(&self, driver: &SimDriver, of: &SimStream, start: u64, bytes: u64) -> Result<(), Error> {
        self.operation()?;
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.clear(driver, of, start, bytes) }
    }

    unsafe fn write(&self, driver: &SimDriver, of: &SimStream, to: u64, bytes: &[u8]) -> Result<(), Error> {
        self.operation()?;
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
        self.operation()?;
        // SAFETY: the caller makes the promises.
        unsafe { self.rank.copy(driver, of, from, to, shape) }
    }
}

/// Short sequences: the simulator computes them at once.
fn short(ranks: usize) -> Case {
    Case { heads: [6, 6], ..Case::new("").packed(&[12], ranks) }
}

/// Runs all ranks with the fault on rank 0, in a second.
fn outcomes(case: &Case, form: Form, fault: Fault, limit: Duration) -> Vec<Result<(), String>> {
    let begun = Instant::now();
    let all = on_ranks(Threads::new(case.chunks.ranks(), limit), |index, rank| {
        let fault = if index == 0 { fault } else { Fault::Nothing };
        let outcome = Rank::new(case, index)?.run(form, &Spoiled::new(rank, fault));
        outcome.inspect_err(|error| assert!(matches!(error, Error::Driver { .. } | Error::Invalid { .. })))
    });
    assert!(begun.elapsed() < Duration::from_secs(60), "{form:?}, {fault:?}: {:?}", begun.elapsed());
    all.into_iter().map(|outcome| outcome.map_err(|error| error.to_string())).collect()
}

/// Any operation of a transport may fail. The rank's error is the transport's. The other ranks end with an
/// error at once, unless they have already got everything.
#[test]
fn a_lost_rank_ends_the_others() {
    let case = short(3);
    for form in Form::ALL {
        let mut operations = 0;
        loop {
            let all = outcomes(&case, form, Fault::Fails(operations), LIMIT);
            if all.iter().all(Result::is_ok) {
                break;
            }
            let says = |outcome: &Result<(), String>, words: &str| match outcome {
                Ok(()) => false,
                Err(error) => error.contains(words),
            };
            assert!(says(&all[0], "the end"), "{form:?}, {operations}: {all:?}");
            let others = all[1..].iter().all(|other| other.is_ok() || says(other, "has ended"));
            assert!(others, "{form:?}, {operations}: {all:?}");
            // The first operation begins the call, so nothing has come from the lost rank.
            assert!(operations > 0 || all[1..].iter().all(Result::is_err), "{form:?}: {all:?}");
            operations += 1;
        }
        assert!(operations >= 8, "{form:?} has {operations} operations only");
    }
}

/// A message that is too short or lost is an error of the rank that waits for it.
#[test]
fn short_and_lost_messages_are_errors() {
    let case = short(2);
    for form in Form::ALL {
        for at in 0.. {
            let all = outcomes(&case, form, Fault::IsShort(at), LIMIT);
            if all.iter().all(Result::is_ok) {
                assert!(at >= 4, "{form:?} sends {at} messages only");
                break;
            }
            let is_short = |error: &String| error.contains("bytes, not");
            assert!(all.iter().any(|of| of.as_ref().is_err_and(is_short)), "{form:?}, {at}: {all:?}");
        }
        let all = outcomes(&case, form, Fault::IsLost(0), Duration::from_secs(2));
        assert!(all.iter().any(Result::is_err), "{form:?}: {all:?}");
    }
}

/// Garbage gives wrong numbers, and nothing worse: kernels read no address and no length from a message.
#[test]
fn garbage_does_no_harm() {
    let case = short(2);
    for form in Form::ALL {
        let all = outcomes(&case, form, Fault::IsGarbage, LIMIT);
        assert!(all.iter().all(Result::is_ok), "{form:?}: {all:?}");
    }
}

type Change = fn(&mut Case);

/// Ranks that disagree end with an error that names both calls, whatever differs.
#[test]
fn ranks_that_disagree_are_refused_by_name() {
    let case = Case::new("").packed(&[12], 3);
    let other = |change: Change| {
        let mut other = case.clone();
        change(&mut other);
        other
    };
    let changes: [(&str, Change); 9] = [
        ("mask full", |case| case.mask = Mask::Full),
        ("2 heads on 2", |case| case.heads = [2, 2]),
        ("4 heads on 4", |case| case.heads = [4, 4]),
        ("of 128 f16", |case| case.head_dim = 128),
        ("of 64 bf16", |case| case.dtype = DType::Bf16),
        ("batch 2", |case| case.batch = 2),
        ("softcap Some(30.0)", |case| case.softcap = 30.0),
        ("13 positions", |case| *case = case.clone().packed(&[13], 3)),
        ("12 positions in chunks", |case| *case = case.clone().contiguous(&[12], 3)),
    ];
    for (name, change) in changes {
        let differs = other(change);
        let all = on_ranks(Threads::new(3, LIMIT), |index, transport| {
            let case = if index == 1 { &differs } else { &case };
            Rank::new(case, index)?.run(Form::Ring, &transport)
        });
        for (rank, outcome) in all.into_iter().enumerate() {
            let error = outcome.expect_err(name).to_string();
            assert!(error.contains("invalid call") && error.contains(name), "{name}, rank {rank}: {error}");
        }
    }
    let all = on_ranks(Threads::new(3, LIMIT), |index, transport| {
        let form = if index == 2 { Form::Gather } else { Form::Ring };
        Rank::new(&case, index)?.run(form, &transport)
    });
    for outcome in all {
        let error = outcome.expect_err("two forms").to_string();
        assert!(error.contains("Ring: batch") && error.contains("Gather: batch"), "{error}");
    }
}

/// Ranks whose loss does and does not depend on the LSE agree in the forward, and not in the backward pass.
#[test]
fn gradients_of_the_lse_are_of_all_ranks_or_of_none() {
    let with = short(2);
    let without = Case { has_d_lse: false, ..with.clone() };
    let all = on_ranks(Threads::new(2, LIMIT), |index, transport| {
        Rank::new(if index == 0 { &with } else { &without }, index)?.run(Form::Ulysses, &transport)
    });
    for outcome in all {
        let error = outcome.expect_err("one d_lse").to_string();
        assert!(error.contains("invalid call: backward pass of d_o"), "{error}");
    }
}

/// Without any time, a rank gets a message or an error. Time without end is no error.
#[test]
fn limits_may_be_nothing_or_everything() {
    let case = short(2);
    for form in Form::ALL {
        for of in outcomes(&case, form, Fault::Nothing, Duration::ZERO) {
            let is_late = |error: &String| error.contains("nothing for 0 s") || error.contains("has ended");
            assert!(of.as_ref().err().is_none_or(is_late), "{form:?}: {of:?}");
        }
        let all = outcomes(&case, form, Fault::Nothing, Duration::MAX);
        assert!(all.iter().all(Result::is_ok), "{form:?}: {all:?}");
    }
}

/// An empty batch has an attention, of nothing, and no gradients, as in the library.
#[test]
fn an_empty_batch_has_no_gradients() {
    let case = Case { batch: 0, ..short(3) };
    for form in Form::ALL {
        let error = all(&case, form).expect_err("no gradients");
        assert!(matches!(error, Error::Invalid { what: "batch", .. }), "{form:?}: {error}");
    }
}

/// Ranks without any position have nothing to do.
#[test]
fn no_positions_are_no_work() {
    let case = Case { chunks: Chunks::zigzag(0, 3).expect("chunks"), lengths: vec![0], ..Case::new("") };
    for form in [Form::Ring, Form::Gather] {
        let Results { tensors, lse } = all(&case, form).expect("nothing to do");
        assert!(tensors.iter().all(Vec::is_empty) && lse.is_empty(), "{form:?}");
    }
}
