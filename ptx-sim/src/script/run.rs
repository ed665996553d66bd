//! Executes scripts.

use super::{Argument, Buffer, Expect, Fill, Script, ScriptError};
use crate::{Gpu, Kind, Launch, Module, Outcome, Report};

/// Number of elements that are compared at a time.
const CHUNK: usize = 1 << 14;

impl Script {
    /// Allocates the buffers on `gpu` and executes every run.
    ///
    /// # Errors
    /// Returns the first refused launch, or the first value that differs from its expectation. The caller
    /// must check for unexpected and missing reports ([`Ran`]).
    pub fn run(&self, gpu: &mut Gpu, module: &Module) -> Result<Vec<Ran>, ScriptError> {
        let memory = |line| move |error| ScriptError::Memory { line, error };
        let mut addresses = Vec::new();
        for buffer in &self.buffers {
            let (ty, bytes, fill) = (buffer.ty, buffer.len * buffer.ty.bytes(), buffer.fill.clone());
            let address = match fill {
                Fill::Nothing => gpu.alloc(&buffer.name, bytes, 256),
                fill => gpu.alloc_with(&buffer.name, bytes, 256, move |at, out| fill.write(ty, at, out)),
            };
            addresses.push(address.map_err(memory(buffer.line))?);
        }
        let mut all = Vec::new();
        for run in &self.runs {
            let mut params = Vec::new();
            for argument in &run.args {
                let bytes = match argument {
                    // The sum cannot overflow, because the offset is within the buffer.
                    Argument::Pointer(buffer, offset) => (addresses[*buffer] + offset).to_le_bytes().to_vec(),
                    Argument::Bytes(bytes) => bytes.clone(),
                };
                params.resize(params.len().next_multiple_of(bytes.len().max(1)), 0);
                params.extend(bytes);
            }
            if let Some(entry) = module.entry(&run.entry) {
                // The last argument may be followed by padding.
                params.resize(
                    params
                        .len()
                        .next_multiple_of(entry.param_align.max(1))
                        .min(entry.param_bytes.max(params.len())),
                    0,
                );
            }
            let launch = Launch { params: &params, ..run.launch };
            let options = gpu.options_mut().clone();
            gpu.options_mut().budget = run.budget.unwrap_or(options.budget);
            gpu.options_mut().patience = run.patience.unwrap_or(options.patience);
            let outcome = gpu.launch(module, &run.entry, &launch);
            *gpu.options_mut() = options;
            let outcome = outcome.map_err(|error| ScriptError::Launch { line: run.line, error })?;
            // A kernel with reports has no meaningful results.
            for expect in run.expects.iter().filter(|_| outcome.reports.is_empty()) {
                self.compare(gpu, addresses[expect.buffer], expect)?;
            }
            all.push(Ran { entry: run.entry.clone(), expected_reports: run.reports.clone(), outcome });
        }
        Ok(all)
    }

    /// Compares the buffer at `address` with the expected values.
    fn compare(&self, gpu: &Gpu, address: u64, expect: &Expect) -> Result<(), ScriptError> {
        let Expect { line, buffer, values, count, tolerance } = expect;
        let Buffer { name, ty, .. } = &self.buffers[*buffer];
        for start in (0..*count).step_by(CHUNK) {
            let mut bytes = vec![0; CHUNK.min(count - start) * ty.bytes()];
            let at = address + (start * ty.bytes()) as u64;
            gpu.read(at, &mut bytes).map_err(|error| ScriptError::Memory { line: *line, error })?;
            let found = bytes.chunks_exact(ty.bytes()).map(|bytes| ty.decode(bytes));
            for (index, found) in (start..).zip(found) {
                let expected = values[index % values.len()];
                if !found.is_within(expected, *tolerance) {
                    let (line, buffer) = (*line, name.clone());
                    let [found, expected] = [found, expected].map(|value| value.to_string());
                    return Err(ScriptError::Value { line, buffer, index, found, expected });
                }
            }
        }
        Ok(())
    }
}

/// The result of one `run` statement.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Name of the entry.
    pub entry: String,
    /// For each `report` line, its kinds. At least one kind of each line must be reported.
    pub expected_reports: Vec<Vec<Kind>>,
    /// The result of the launch.
    pub outcome: Outcome,
}

impl Ran {
    /// The `report` lines for which no report has any of the line's kinds.
    pub fn missing(&self) -> impl Iterator<Item = &[Kind]> {
        let found = |kind: &Kind| self.outcome.reports.iter().any(|report| report.kind == *kind);
        self.expected_reports.iter().filter(move |kinds| !kinds.iter().any(found)).map(Vec::as_slice)
    }

    /// The reports with kinds that no `report` line names.
    pub fn unexpected(&self) -> impl Iterator<Item = &Report> {
        self.outcome
            .reports
            .iter()
            .filter(|report| !self.expected_reports.iter().flatten().any(|kind| *kind == report.kind))
    }

    /// Whether the expected reports occurred, and no others.
    pub fn as_expected(&self) -> bool {
        self.missing().next().is_none() && self.unexpected().next().is_none()
    }
}
