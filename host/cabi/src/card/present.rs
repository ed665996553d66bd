//! A simulated card: the simulator's driver and the memory that callers allocated.
use crate::call::invalid;
use ferroflash::driver::{Harness, SimBuffer, SimDriver, SimStream};
use ferroflash::plan::{AnyPlan, PlanOf, Request};
use ferroflash::{Attention, Error};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A simulated card.
pub(crate) struct Simulator {
    attention: Attention<SimDriver>,
    /// The launch that runs. Another launch of several steps would take its findings.
    running: Mutex<()>,
    /// The callers' memory, by address.
    memory: Mutex<BTreeMap<u64, SimBuffer>>,
}

impl Simulator {
    pub(crate) fn new(profile: &str) -> Result<Self, Error> {
        let attention = Attention::new(SimDriver::new(profile)?);
        Ok(Simulator { attention, running: Mutex::default(), memory: Mutex::default() })
    }

    pub(crate) fn plan<R: Request>(&self, request: &R) -> Result<PlanOf<R>, Error> {
        self.attention.plan(request)
    }

    pub(crate) fn load(&self, plan: &AnyPlan) -> Result<(), Error> {
        self.attention.load(plan)
    }

    /// Runs a launch. Returns the first finding of the checks as an error.
    pub(crate) fn launch<R: Request>(&self, plan: &PlanOf<R>, request: &R) -> Result<(), Error> {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the simulator checks every access, and a launch has run when it returns.
        let launched = unsafe { self.attention.launch(plan, request, &SimStream) };
        let card = self.attention.driver();
        let outcome = launched.and_then(|_| card.synchronize(&SimStream));
        // The next launch must not fail because of these findings.
        card.take_reports();
        outcome
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        let card = self.attention.driver();
        let buffer = card.allocate(bytes)?;
        let address = card.address(&buffer);
        self.memory().insert(address, buffer);
        Ok(address)
    }

    pub(crate) fn free(&self, address: u64) -> Result<(), Error> {
        self.memory().remove(&address).map(drop).ok_or_else(|| unknown(address))
    }

    pub(crate) fn write(&self, address: u64, data: &[u8]) -> Result<(), Error> {
        let mut memory = self.memory();
        let (base, buffer) = memory.range_mut(..=address).next_back().ok_or_else(|| unknown(address))?;
        self.attention.driver().upload_at(buffer, (address - base) as usize, data)
    }

    pub(crate) fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Error> {
        let memory = self.memory();
        let (base, buffer) = memory.range(..=address).next_back().ok_or_else(|| unknown(address))?;
        self.attention.driver().download_at(buffer, (address - base) as usize, data)
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<u64, SimBuffer>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(address: u64) -> Error {
    let expected = "it must be an address of ferroflash_simulator_allocate that is not freed";
    invalid("address", format_args!("{address:#x}"), expected)
}
