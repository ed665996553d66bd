//! The results of one attention, and the times of its steps.
use serde::Serialize;
use std::time::Duration;

/// Results of one attention.
pub(super) struct Results {
    /// The kernel that ran.
    pub kernel: Option<&'static str>,
    /// Why the planner took it.
    pub reason: Option<&'static str>,
    /// O as `Memory::o` places it.
    pub o: Vec<u16>,
    /// LSE, `[batch, heads, seqlen]`.
    pub lse: Vec<f32>,
    /// What it took.
    pub took: Took,
}

/// Milliseconds of the steps of one attention.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Took {
    /// Copying the inputs to the device; none on the CPU.
    pub upload: Option<f64>,
    /// Loading the kernel, which the driver may compile; none on the CPU.
    pub load: Option<f64>,
    /// The kernel by the device's clock; none where no device was.
    pub kernel: Option<f64>,
    /// What simulating it, or the reference, took on the CPU: it says nothing of a device.
    pub cpu: Option<f64>,
}

impl Took {
    /// Steps on a device.
    pub(super) fn on_device([upload, load, kernel]: [Duration; 3]) -> Self {
        let [upload, load, kernel] = [upload, load, kernel].map(|took| Some(milliseconds(took)));
        Took { upload, load, kernel, cpu: None }
    }

    /// The reference.
    pub(super) fn on_cpu(took: Duration) -> Self {
        Took { upload: None, load: None, kernel: None, cpu: Some(milliseconds(took)) }
    }
}

/// A duration for a report.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
