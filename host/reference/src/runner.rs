//! Runs problems on a device and brings the results back: the one path of tests and command line to every
//! driver.
use super::bounds::Bounds;
use super::memory::{Memory, Place};
use super::tensor::HostTensor;
use super::tolerance::{Reference, Verdict};
use ferroflash::{Attention, Driver, Error, Forward, Plan, Workspace};
use std::time::{Duration, Instant};

/// Elements before and after each output that belong to nobody and must stay as they are.
const GUARD: usize = 64;
/// An address far from all buffers.
const FREE: u64 = 1 << 60;
/// What outputs are filled with before a launch: not a number in f16, bf16 and f32.
const POISON: u8 = 0xff;

/// What came back from a device.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The kernel that ran.
    pub entry: &'static str,
    /// O with its guards.
    o: Vec<u16>,
    /// O's place between the guards.
    place: Place,
    /// Rows of O that are to be written: the first of them.
    rows: usize,
    /// LSE with its guards.
    lse: Vec<f32>,
    /// Whether the launch was to write it.
    wants_lse: bool,
}

impl Outcome {
    /// O as it lies in memory.
    pub fn o(&self) -> &[u16] {
        &self.o[GUARD..self.o.len() - GUARD]
    }

    /// LSE, `[batch, heads, seqlen]`.
    pub fn lse(&self) -> &[f32] {
        &self.lse[GUARD..self.lse.len() - GUARD]
    }

    /// Elements that were written although they are not part of O or LSE: guards, and gaps between rows.
    fn strays(&self) -> usize {
        let mut own = vec![false; self.o.len()];
        let [batches, _, heads, head_dim] = self.place.shape;
        let rows = self.rows;
        for index in 0..batches * rows * heads {
            own[GUARD + self.place.row(index)..][..head_dim].fill(true);
        }
        let poison = u16::from_ne_bytes([POISON; 2]);
        let o = self.o.iter().zip(own).filter(|(bits, own)| !own && **bits != poison).count();
        let is_own = |at: usize| {
            let inside = (GUARD..self.lse.len() - GUARD).contains(&at);
            self.wants_lse && inside && (at - GUARD) % self.place.shape[1] < self.rows
        };
        let poison = u32::from_ne_bytes([POISON; 4]);
        o + self.lse.iter().enumerate().filter(|(at, x)| !is_own(*at) && x.to_bits() != poison).count()
    }

    /// Whether both are the same, bit by bit, guards included.
    pub fn same_bits(&self, other: &Outcome) -> bool {
        let bits = |lse: &[f32]| lse.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        self.o == other.o && bits(&self.lse) == bits(&other.lse)
    }

    /// Judges it by [`Reference::judge`], and counts what was written outside of O and LSE. `None` where the
    /// shapes differ.
    pub fn judge(&self, reference: &Reference, dtype: ferroflash::DType) -> Option<Verdict> {
        self.judged(dtype, |o, lse| reference.judge(o, lse))
    }

    /// The same by [`Bounds::judge`].
    pub fn judge_within(&self, bounds: &Bounds, dtype: ferroflash::DType) -> Option<Verdict> {
        self.judged(dtype, |o, lse| bounds.judge(o, lse))
    }

    fn judged(
        &self,
        dtype: ferroflash::DType,
        judge: impl FnOnce(&HostTensor, Option<&[f32]>) -> Option<Verdict>,
    ) -> Option<Verdict> {
        let Place { shape: [batches, rows, heads, head_dim], strides, .. } = self.place;
        let o = HostTensor::new(self.o(), 0, dtype, [batches, self.rows, heads, head_dim], strides).ok()?;
        let lse: Vec<f32> = self.lse().chunks(rows).flat_map(|head| &head[..self.rows]).copied().collect();
        Some(Verdict { strays: self.strays(), ..judge(&o, self.wants_lse.then_some(&lse))? })
    }
}

/// A problem whose inputs are in device memory.
pub struct Loaded<'a, D: Driver> {
    attention: &'a Attention<D>,
    memory: &'a Memory,
    config: Option<&'a str>,
    wants_lse: bool,
    inputs: Vec<D::Buffer>,
    /// As much as helps, where any does.
    workspace: Option<(D::Buffer, u64)>,
    stream: D::Stream,
}

/// Outputs in device memory.
struct Outputs<D: Driver> {
    o: D::Buffer,
    lse: D::Buffer,
}

impl<'a, D: Driver> Loaded<'a, D> {
    /// Copies the inputs of `memory` to the device. `config` names the entry to run, or leaves it to the
    /// planner.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(
        attention: &'a Attention<D>,
        memory: &'a Memory,
        config: Option<&'a str>,
    ) -> Result<Self, Error> {
        let driver = attention.driver();
        let inputs = memory.buffers.iter().zip(memory.names()).map(|(bits, name)| {
            let bytes: Vec<u8> = bits.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let mut buffer = driver.allocate_named(&name, bytes.len())?;
            driver.upload(&mut buffer, &bytes)?;
            Ok(buffer)
        });
        let inputs = inputs.collect::<Result<_, Error>>()?;
        let stream = driver.stream()?;
        let mut loaded =
            Loaded { attention, memory, config, wants_lse: true, inputs, workspace: None, stream };
        loaded.make_room()?;
        Ok(loaded)
    }

    /// The same for launches that are to write no log-sum-exp.
    pub fn without_lse(self) -> Self {
        Loaded { wants_lse: false, ..self }
    }

    /// Allocates the workspace that `config` works best with. What it holds is never read before it is
    /// written, so it stays uninitialised.
    fn make_room(&mut self) -> Result<(), Error> {
        self.workspace = None;
        let driver = self.attention.driver();
        // Addresses that no buffer has: the outputs are made later, and what is invalid is reported at the
        // launch.
        let planned = self.attention.plan_with(&self.forward(FREE, 2 * FREE), u64::MAX);
        let bytes = planned.map_or(0, |plan| plan.workspace_bytes());
        if bytes > 0 {
            self.workspace = Some((driver.allocate_named("workspace", bytes as usize)?, bytes));
        }
        Ok(())
    }

    /// Launches once and brings the outputs back.
    ///
    /// # Errors
    /// Those of planning, launching and waiting.
    pub fn run(&self) -> Result<Outcome, Error> {
        let outputs = self.outputs()?;
        let plan = self.launch(&outputs)?;
        self.attention.driver().synchronize(&self.stream)?;
        self.outcome(&plan, &outputs)
    }

    /// The same with what it took to load the kernel, and what the launch took on the device.
    ///
    /// # Errors
    /// Those of planning, launching and waiting.
    pub fn run_timed(&self) -> Result<(Outcome, [Duration; 2]), Error> {
        let outputs = self.outputs()?;
        let (plan, forward) = self.plan(&outputs)?;
        let start = Instant::now();
        self.attention.load(&plan)?;
        let load = start.elapsed();
        let kernel = self.attention.driver().time(&self.stream, &mut |stream| {
            // SAFETY: as in `launch`.
            unsafe { self.attention.launch(&plan, &forward, stream) }
        })?;
        self.attention.driver().synchronize(&self.stream)?;
        Ok((self.outcome(&plan, &outputs)?, [load, kernel]))
    }

    /// Launches `launches` times in turn on each of `streams`, each into outputs of its own, and returns how
    /// many outcomes differ from `expected` in any bit. Waits for all streams after every `every`
    /// launches, and after the last; compares only then.
    ///
    /// # Errors
    /// Those of planning, launching and waiting, and out of memory.
    pub fn soak(streams: &[Self], expected: &Outcome, launches: usize, every: usize) -> Result<usize, Error> {
        let turns = || streams.iter().cycle().take(launches);
        let outputs = turns().map(Self::outputs).collect::<Result<Vec<_>, _>>()?;
        let wait =
            || streams.iter().try_for_each(|loaded| loaded.attention.driver().synchronize(&loaded.stream));
        let mut plan = None;
        for (done, (loaded, outputs)) in turns().zip(&outputs).enumerate() {
            plan = Some(loaded.launch(outputs)?);
            if (done + 1).is_multiple_of(every) {
                wait()?;
            }
        }
        wait()?;
        let Some(plan) = plan else { return Ok(0) };
        let mut differing = 0;
        for (loaded, outputs) in turns().zip(&outputs) {
            differing += usize::from(!loaded.outcome(&plan, outputs)?.same_bits(expected));
        }
        Ok(differing)
    }

    /// Device time of `launches` launches of `config`, one after the other, into the same outputs. The kernel
    /// is loaded before.
    ///
    /// # Errors
    /// Those of planning, launching and waiting.
    pub fn time(&mut self, config: &'a str, launches: usize) -> Result<Duration, Error> {
        self.config = Some(config);
        self.make_room()?;
        let outputs = self.outputs()?;
        let (plan, forward) = self.plan(&outputs)?;
        self.attention.load(&plan)?;
        self.attention.driver().time(&self.stream, &mut |stream| {
            // SAFETY: as in `launch`; the launches are in the order of one stream.
            (0..launches).try_for_each(|_| unsafe { self.attention.launch(&plan, &forward, stream) })
        })
    }

    /// Poisoned outputs.
    fn outputs(&self) -> Result<Outputs<D>, Error> {
        let driver = self.attention.driver();
        let poisoned = |name, bytes| {
            let mut buffer = driver.allocate_named(name, bytes)?;
            driver.fill(&mut buffer, POISON)?;
            Ok(buffer)
        };
        let (o, lse) = (self.memory.o.span(), self.memory.lse_shape().iter().product::<usize>());
        Ok(Outputs { o: poisoned("o", (o + 2 * GUARD) * 2)?, lse: poisoned("lse", (lse + 2 * GUARD) * 4)? })
    }

    fn plan(&self, outputs: &Outputs<D>) -> Result<(Plan, Forward<'a>), Error> {
        let driver = self.attention.driver();
        let (o, lse) =
            (driver.address(&outputs.o) + GUARD as u64 * 2, driver.address(&outputs.lse) + GUARD as u64 * 4);
        let forward = self.forward(o, lse);
        Ok((self.attention.plan(&forward)?, forward))
    }

    fn forward(&self, o: u64, lse: u64) -> Forward<'a> {
        let driver = self.attention.driver();
        let inputs: Vec<_> = self.inputs.iter().map(|buffer| driver.address(buffer)).collect();
        let place =
            |(buffer, bytes): &(D::Buffer, u64)| Workspace { address: driver.address(buffer), bytes: *bytes };
        let workspace = self.workspace.as_ref().map(place);
        let mut forward = self.memory.forward(&inputs, o, lse);
        (forward.config, forward.workspace) = (self.config, workspace);
        forward.lse = forward.lse.filter(|_| self.wants_lse);
        forward
    }

    fn launch(&self, outputs: &Outputs<D>) -> Result<Plan, Error> {
        let (plan, forward) = self.plan(outputs)?;
        // SAFETY: every view is of a buffer of this driver that is as large as the view says and is freed
        // only after a wait; outputs are this launch's own, and nobody writes the inputs.
        unsafe { self.attention.launch(&plan, &forward, &self.stream)? };
        Ok(plan)
    }

    fn outcome(&self, plan: &Plan, outputs: &Outputs<D>) -> Result<Outcome, Error> {
        let driver = self.attention.driver();
        let place = self.memory.o;
        let mut o = vec![0; (place.span() + 2 * GUARD) * 2];
        let mut lse = vec![0; (self.memory.lse_shape().iter().product::<usize>() + 2 * GUARD) * 4];
        driver.download(&outputs.o, &mut o)?;
        driver.download(&outputs.lse, &mut lse)?;
        let o = o.chunks_exact(2).map(|b| u16::from_ne_bytes([b[0], b[1]])).collect();
        let lse = lse.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
        let rows = self.memory.written().shape[1];
        Ok(Outcome { entry: plan.contract().symbol, o, place, rows, lse, wants_lse: self.wants_lse })
    }
}
