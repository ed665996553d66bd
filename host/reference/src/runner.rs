//! Forward problems on a device, and their outcomes.
use super::arithmetic::decode;
use super::bounds::Bounds;
use super::memory::{Memory, Place};
use super::sequences::Sequences;
use super::tensor::{HostTensor, TensorError};
use super::told::Told;
use super::tolerance::Rule;
use super::tolerance::{Reference, Verdict};
use super::work::{
    Asked, Buffer, GUARD, Input, Judge, Judgement, LaunchOptions, OnDevice, POISON, Rows, Work, Written,
    guarded,
};
use ferroflash::driver::Harness;
use ferroflash::{Attention, Error};
use std::time::Duration;

/// Number of elements of the guards before and behind O, and before and behind LSE.
const GUARDS: [usize; 2] = [GUARD / 2, GUARD / 4];

/// Outputs of a launch.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The kernel that ran.
    pub entry: &'static str,
    /// The planner's reason for this kernel.
    pub reason: &'static str,
    /// O with its guard elements.
    o: Vec<u16>,
    /// O's place between the guards.
    place: Place,
    /// Number of rows of O that the kernel writes. The rows that the kernel writes come before all other
    /// rows.
    rows: usize,
    /// LSE with its guard elements.
    lse: Vec<f32>,
    /// Whether the launch writes LSE.
    wants_lse: bool,
}

impl Outcome {
    /// Splits the outputs of a launch of `memory`.
    fn new(memory: &Memory, written: &Written, wants_lse: bool) -> Self {
        let [o, lse] = [0, 1].map(|i| written.outputs[i].as_slice());
        Outcome {
            entry: written.entry,
            reason: written.reason,
            o: o.as_chunks().0.iter().map(|b| u16::from_ne_bytes(*b)).collect(),
            place: memory.o,
            rows: memory.written().shape[1],
            lse: lse.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect(),
            wants_lse,
        }
    }

    /// Returns O as it lies in memory.
    pub fn o(&self) -> &[u16] {
        &self.o[GUARDS[0]..self.o.len() - GUARDS[0]]
    }

    /// Returns LSE, `[batch, heads, seqlen]`.
    pub fn lse(&self) -> &[f32] {
        &self.lse[GUARDS[1]..self.lse.len() - GUARDS[1]]
    }

    /// Returns the number of elements that were written outside O and LSE: in guards, and between rows.
    fn strays(&self) -> usize {
        let mut own = vec![false; self.o.len()];
        let [batches, _, heads, head_dim] = self.place.shape;
        let rows = self.rows;
        for index in 0..batches * rows * heads {
            own[GUARDS[0] + self.place.row(index)..][..head_dim].fill(true);
        }
        let poison = u16::from_ne_bytes([POISON; 2]);
        let o = self.o.iter().zip(own).filter(|(bits, own)| !own && **bits != poison).count();
        let is_own = |at: usize| {
            let inside = (GUARDS[1]..self.lse.len() - GUARDS[1]).contains(&at);
            self.wants_lse && inside && (at - GUARDS[1]) % self.place.shape[1] < self.rows
        };
        let poison = u32::from_ne_bytes([POISON; 4]);
        o + self.lse.iter().enumerate().filter(|(at, x)| !is_own(*at) && x.to_bits() != poison).count()
    }

    /// Judges the outputs by [`Reference::judge`], and counts writes outside of O and LSE. Returns `None` if
    /// the shapes differ.
    pub fn judge(&self, reference: &Reference, dtype: ferroflash::DType) -> Option<Verdict> {
        self.judged(dtype, |o, lse| reference.judge(o, lse))
    }

    /// Judges the outputs by [`Bounds::judge`], and counts writes outside O and LSE.
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

impl Work for Memory {
    fn inputs(&self) -> Vec<Input> {
        let bytes = |bits: &Vec<u16>| bits.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let named = self.names().into_iter().zip(self.buffers.iter().map(bytes));
        let extras = self.extras.buffers().into_iter().map(|(name, bytes)| Input::new(name, bytes));
        named.map(|(name, bytes)| Input::new(name, bytes)).chain(extras).collect()
    }

    fn outputs(&self) -> Vec<Buffer> {
        let rows = self.lse_shape().iter().product::<usize>();
        vec![guarded("o", self.o.span() * 2), guarded("lse", rows * 4)]
    }

    fn request<'a>(&'a self, inputs: &[u64], outputs: &[u64], options: LaunchOptions<'a>) -> Asked<'a> {
        let mut forward = self.forward(inputs, outputs[0] + GUARD as u64, outputs[1] + GUARD as u64);
        (forward.config, forward.scratch) = (options.config, options.scratch);
        forward.lse = forward.lse.filter(|_| options.wants_lse);
        Asked::Attention(forward)
    }

    fn rounds(&self) -> Vec<Vec<(usize, Vec<u8>)>> {
        let bytes = |array: &Vec<i32>| array.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let round = |told: &Told| {
            let told = self.told(*told).sequences;
            let arrays = told.iter().flat_map(Sequences::arrays).map(|(_, array)| bytes(array));
            (self.first_array()..).zip(arrays).collect()
        };
        self.told.iter().map(round).collect()
    }

    fn rows(&self, written: &Written) -> Option<Rows> {
        let (outcome, place, dtype) = (Outcome::new(self, written, true), self.written(), self.problem.dtype);
        let [batches, rows, heads, columns] = place.shape;
        let row = |index| &outcome.o()[place.row(index)..][..columns];
        let o = (0..batches * rows * heads).flat_map(row).map(|bits| decode(dtype, *bits)).collect();
        Some(Rows { dtype, columns, o, lse: self.written_lse(outcome.lse()) })
    }

    fn judge(&self, rule: Rule) -> Result<Judge<'_>, TensorError> {
        let dtype = self.problem.dtype;
        let values = self.buffers[self.v.buffer].iter().map(|bits| f64::from(decode(dtype, *bits)));
        let right = |told: &Told| match told {
            Told::Filled | Told::Fewer(_) => {
                let memory = self.told(*told);
                let reference = Reference::new(&memory.inputs()?).by(rule, dtype, values.clone());
                Ok(Some((memory, reference)))
            }
            Told::Garbage(_) | Told::Lost(_) => Ok(None),
        };
        let rounds = self.told.iter().map(right).collect::<Result<Vec<_>, TensorError>>()?;
        Ok(Box::new(move |round, written| {
            let Some((memory, reference)) = &rounds[round] else {
                let all = Outcome { rows: self.o.shape[1], ..Outcome::new(self, written, true) };
                return Judgement::outside(all.strays());
            };
            let outcome = Outcome::new(memory, written, true);
            if outcome.rows == 0 {
                // No sequence has a row of Q, so the launch must not write anything.
                return Judgement::outside(outcome.strays());
            }
            let verdict = outcome.judge(reference, dtype);
            verdict.map_or_else(|| Judgement::failed("the output has another shape"), Judgement::from)
        }))
    }
}

/// A problem whose inputs are in device memory.
pub struct Loaded<'a, D: Harness> {
    device: OnDevice<'a, D>,
    memory: &'a Memory,
    wants_lse: bool,
}

impl<'a, D: Harness> Loaded<'a, D> {
    /// Copies the inputs of `memory` to the device. `config` names the entry to run; without it, the planner
    /// chooses.
    ///
    /// # Errors
    /// Returns the driver's errors.
    pub fn new(
        attention: &'a Attention<D>,
        memory: &'a Memory,
        config: Option<&'a str>,
    ) -> Result<Self, Error> {
        Ok(Loaded { device: OnDevice::new(attention, memory, config)?, memory, wants_lse: true })
    }

    /// Makes launches without LSE.
    pub fn without_lse(self) -> Self {
        Loaded { device: self.device.without_lse(), wants_lse: false, ..self }
    }

    /// Launches once and returns the outputs.
    ///
    /// # Errors
    /// Returns the errors of planning, launching and waiting.
    pub fn run(&self) -> Result<Outcome, Error> {
        Ok(Outcome::new(self.memory, &self.device.run()?, self.wants_lse))
    }

    /// Like [`Loaded::run`], but also returns two durations: the time to load the kernel on the host, and the
    /// time of the launch on the device.
    ///
    /// # Errors
    /// Returns the errors of planning, launching and waiting.
    pub fn run_timed(&self) -> Result<(Outcome, [Duration; 2]), Error> {
        let (written, took) = self.device.run_timed()?;
        Ok((Outcome::new(self.memory, &written, self.wants_lse), took))
    }

    /// Returns the device time of `launches` consecutive launches of `config`. The launches share their
    /// outputs. The kernel is loaded before the first of these launches.
    ///
    /// # Errors
    /// Returns the errors of planning, launching and waiting.
    pub fn time(&mut self, config: &'a str, launches: usize) -> Result<Duration, Error> {
        self.device.configure(Some(config))?;
        self.device.time(&self.device.outputs()?, launches)
    }
}
