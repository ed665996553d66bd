//! Progress of a build.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that receives progress: the number of compiled modules, and the number of all modules.
#[derive(Clone)]
pub(crate) struct Report(Arc<dyn Fn(usize, usize) + Send + Sync>);

impl Report {
    pub(crate) fn new(report: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Report(Arc::new(report))
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Report(..)")
    }
}

/// Counts the modules that a build has compiled.
pub(crate) struct Progress {
    report: Option<Report>,
    made: AtomicUsize,
    of: usize,
}

impl Progress {
    /// The progress of a build that must compile `of` modules.
    pub(crate) fn new(report: Option<Report>, of: usize) -> Self {
        let progress = Progress { report, made: AtomicUsize::new(0), of };
        if of > 0 {
            progress.made(0);
        }
        progress
    }

    /// Adds `count` compiled modules.
    pub(crate) fn made(&self, count: usize) {
        let made = self.made.fetch_add(count, Ordering::Relaxed) + count;
        if let Some(Report(report)) = &self.report {
            report(made, self.of);
        }
    }
}
