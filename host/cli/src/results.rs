//! The results of one attention, and the times of its steps.
use ferroflash::request::RowOutputs;
use serde::Serialize;
use std::time::Duration;

/// Results of one attention.
pub(super) struct Results {
    /// The kernel that ran.
    pub kernel: Option<&'static str>,
    /// The planner's reason for the kernel.
    pub reason: Option<&'static str>,
    /// O, laid out as `Memory::o` describes.
    pub o: Vec<u16>,
    /// The outputs of rows, `[batch, heads, seqlen]`.
    pub rows: RowOutputs<Option<Vec<f32>>>,
    /// The largest score of each head.
    pub head_maxima: Option<Vec<f32>>,
    /// The times of the steps.
    pub took: Took,
}

/// Milliseconds of the steps of one attention.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Took {
    /// Copying the inputs to the device, or `None` on the CPU.
    pub upload: Option<f64>,
    /// Loading the kernel, which the driver may compile, or `None` on the CPU.
    pub load: Option<f64>,
    /// The kernel's time by the device's clock, or `None` if no kernel ran on a device.
    pub kernel: Option<f64>,
    /// The time that the CPU took to simulate the kernel, or to compute the reference. This time is no time
    /// of a GPU.
    pub cpu: Option<f64>,
}

impl Took {
    /// Times of the steps on a device.
    pub(super) fn on_device([upload, load, kernel]: [Duration; 3]) -> Self {
        let [upload, load, kernel] = [upload, load, kernel].map(|took| Some(milliseconds(took)));
        Took { upload, load, kernel, cpu: None }
    }

    /// Creates the times of the reference.
    pub(super) fn on_cpu(took: Duration) -> Self {
        Took { upload: None, load: None, kernel: None, cpu: Some(milliseconds(took)) }
    }
}

/// Returns the milliseconds of a duration, for a report.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
