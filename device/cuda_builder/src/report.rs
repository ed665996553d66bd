//! Assembles modules for a target and reports each entry's registers, spills and instructions. Reports are
//! cached by content.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::merged::Merged;
use crate::ptxas::{Assembler, Resources};
use crate::sass::{self, Sass};
use crate::{Arch, Error, Module, lines};

/// The source code that writes the input of the tools and parses their output. If this code changes, reports
/// cached by the old code are not used.
const READERS: [&str; 7] = [
    include_str!("descriptors.rs"),
    include_str!("merged.rs"),
    include_str!("ptxas.rs"),
    include_str!("queued.rs"),
    include_str!("report.rs"),
    include_str!("sass.rs"),
    include_str!("scan.rs"),
];

/// Largest number of modules per run of the tools. To disassemble 24 modules takes 1.0 s in one run, and
/// 5.3 s in 24 runs.
const BATCH: usize = 16;

/// The resources of one entry on one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryReport {
    /// The symbol of the entry.
    pub entry: String,
    /// The target for which ptxas assembled the module.
    pub target: String,
    /// Registers per thread.
    pub registers: u32,
    /// Stack frame in bytes.
    pub stack: u32,
    /// Number of bytes of spill stores.
    pub spill_stores: u32,
    /// Number of bytes of spill loads.
    pub spill_loads: u32,
    /// Static shared memory in bytes.
    pub static_smem: u32,
    /// Whether the PTX has a local depot.
    pub local_depot: bool,
    /// The messages of ptxas about serialised `wgmma` products.
    pub serialised: Vec<String>,
    /// The instruction counts.
    pub sass: Sass,
}

/// Assembles and disassembles modules, and caches the reports in a folder.
///
/// The cache key of a report is a hash of four things: the PTX without source lines, the target, the versions
/// of the tools, and the code that parses their output. The reporter writes each file under another name and
/// then renames it, so an interrupted run leaves no partial file.
#[derive(Debug)]
pub struct Reporter {
    assembler: Assembler,
    cache: PathBuf,
}

impl Reporter {
    /// Finds the tools for `workspace`. `cache` is the folder of cached reports.
    ///
    /// # Errors
    /// Returns [`Error::NoTool`] if a tool is missing.
    pub fn new(workspace: &Path, cache: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::of(Assembler::locate(workspace)?, cache)
    }

    /// A reporter that runs this assembler.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the folder cannot be created.
    pub fn of(assembler: Assembler, cache: impl Into<PathBuf>) -> Result<Self, Error> {
        let cache = cache.into();
        fs::create_dir_all(&cache).map_err(Error::io("create", &cache))?;
        Ok(Self { assembler, cache })
    }

    /// The assembler and the disassembler of this reporter.
    pub fn assembler(&self) -> &Assembler {
        &self.assembler
    }

    /// Reports every module on every target that can run it, on all cores. Calls `done` after each report.
    /// The reports are ordered by module, then by target.
    ///
    /// # Errors
    /// Returns the first [`Error`] of a tool.
    pub fn report_all<'m>(
        &self,
        modules: &'m [Module],
        targets: &[Arch],
        done: impl Fn() + Sync,
    ) -> Result<Vec<(&'m Module, EntryReport)>, Error> {
        let codes: Vec<_> = modules.iter().map(|module| lines::split(&module.text).0).collect();
        let (mut reports, mut groups) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for (n, (module, ptx)) in modules.iter().zip(&codes).enumerate() {
            for &target in targets.iter().filter(|target| module.arch.assembles_for(**target)) {
                let job = Job { n, entry: module.contract.symbol, ptx, target, kept: self.file(ptx, target) };
                match job.kept() {
                    Some(report) => {
                        reports.push((n, target, report));
                        done();
                    }
                    None => groups.entry((module.arch, target)).or_default().push(job),
                }
            }
        }
        let batches: Vec<_> = groups.values().flat_map(|jobs| jobs.chunks(BATCH)).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut reports = Vec::new();
            while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                for (job, report) in batch.iter().zip(self.made(batch)?) {
                    reports.push((job.n, job.target, report));
                    done();
                }
            }
            Ok(reports)
        };
        let workers = thread::available_parallelism().map_or(1, |n| n.get());
        let made = thread::scope(|scope| {
            let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let each = handles.into_iter().map(|h| h.join().expect("a report does not panic"));
            each.collect::<Result<Vec<_>, Error>>()
        })?;
        reports.extend(made.into_iter().flatten());
        let place = |target| targets.iter().position(|t| *t == target);
        reports.sort_by_key(|(n, target, _)| (*n, place(*target)));
        Ok(reports.into_iter().map(|(n, _, report)| (&modules[n], report)).collect())
    }

    /// Makes and caches the reports of a batch, in its order.
    fn made(&self, batch: &[Job<'_>]) -> Result<Vec<EntryReport>, Error> {
        let mut merged = Merged::default();
        let mut fits = batch.len();
        for (n, job) in batch.iter().enumerate() {
            if !merged.add(job.ptx)? {
                fits = n;
                break;
            }
        }
        let (first, rest) = batch.split_at(fits);
        let mut reports = match self.assemble(first, merged.text()) {
            // Alone, each module gets its own message.
            Err(Error::Tool { .. }) if first.len() > 1 => {
                let each = first.chunks(1).map(|job| self.made(job)).collect::<Result<Vec<_>, _>>()?;
                each.into_iter().flatten().collect()
            }
            reports => reports?,
        };
        if !rest.is_empty() {
            reports.extend(self.made(rest)?);
        }
        Ok(reports)
    }

    /// Assembles and disassembles `ptx`, which has the entries of `batch`. Caches the reports of the entries.
    fn assemble(&self, batch: &[Job<'_>], ptx: &str) -> Result<Vec<EntryReport>, Error> {
        let Some(lead) = batch.first() else { return Ok(Vec::new()) };
        let (source, cubin) = (lead.scratch("ptx"), lead.scratch("cubin"));
        fs::write(&source, ptx).map_err(Error::io("write", &source))?;
        let said = self.assembler.assemble(lead.entry, lead.target, &source, &cubin);
        let said = said.and_then(|r| Ok((r, self.assembler.disassemble(lead.entry, lead.target, &cubin)?)));
        for scratch in [source, cubin] {
            // A file that cannot be removed only wastes space.
            let _ = fs::remove_file(scratch);
        }
        let (said, sass) = said?;
        let report = |job: &Job<'_>| {
            let report = job.report(&said, &sass)?;
            job.keep(&report)?;
            Ok(report)
        };
        batch.iter().map(report).collect()
    }

    /// The cache key of the report of `ptx`, which has no source lines.
    pub(crate) fn key(&self, ptx: &str, target: Arch) -> u64 {
        let mut hasher = DefaultHasher::new();
        (READERS, self.assembler.version(), target, ptx).hash(&mut hasher);
        hasher.finish()
    }

    /// The file of a cached report.
    fn file(&self, ptx: &str, target: Arch) -> PathBuf {
        self.cache.join(format!("{:016x}.json", self.key(ptx, target)))
    }
}

/// One module to report on one target.
struct Job<'a> {
    /// The index of the module.
    n: usize,
    entry: &'a str,
    /// The module without source lines.
    ptx: &'a str,
    target: Arch,
    /// The file of the cached report.
    kept: PathBuf,
}

impl Job<'_> {
    /// The cached report. If the file cannot be parsed, another version of this crate wrote it, so this
    /// function returns `None`.
    fn kept(&self) -> Option<EntryReport> {
        serde_json::from_slice(&fs::read(&self.kept).ok()?).ok()
    }

    fn keep(&self, report: &EntryReport) -> Result<(), Error> {
        let text = serde_json::to_vec(report).map_err(|e| Error::io("write", &self.kept)(e.into()))?;
        let part = self.scratch("json");
        fs::write(&part, text).map_err(Error::io("write", &part))?;
        fs::rename(&part, &self.kept).map_err(Error::io("write", &self.kept))
    }

    /// A file that only this process writes.
    fn scratch(&self, extension: &str) -> PathBuf {
        self.kept.with_extension(format!("{}.{extension}.part", std::process::id()))
    }

    /// The report, from the output of ptxas and nvdisasm for a text with this job's entry.
    fn report(&self, said: &str, sass: &str) -> Result<EntryReport, Error> {
        let missing = |tool, what| Error::ToolOutput {
            tool,
            subject: format!("{} for {}", self.entry, self.target),
            what,
        };
        let resources =
            Resources::parse(self.entry, said).ok_or_else(|| missing("ptxas", "register count"))?;
        let code = sass::section(self.entry, sass).ok_or_else(|| missing("nvdisasm", "code section"))?;
        Ok(EntryReport {
            entry: self.entry.to_owned(),
            target: self.target.name().to_owned(),
            registers: resources.registers,
            stack: resources.stack,
            spill_stores: resources.spill_stores,
            spill_loads: resources.spill_loads,
            static_smem: resources.static_smem,
            local_depot: self.ptx.contains("__local_depot"),
            serialised: resources.serialised,
            sass: Sass::parse(code),
        })
    }
}
