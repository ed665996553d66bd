//! Assembles modules for a target and reports each entry's registers, spills and instructions. Reports are
//! cached by content.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::ptxas::Assembler;
use crate::sass::Sass;
use crate::{Arch, Error, Module, lines};

/// The source code that parses the output of the tools. If this code changes, reports cached by the old code
/// are not used.
const READERS: [&str; 3] = [include_str!("report.rs"), include_str!("ptxas.rs"), include_str!("sass.rs")];

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
        let cache = cache.into();
        fs::create_dir_all(&cache).map_err(Error::io("create", &cache))?;
        Ok(Self { assembler: Assembler::locate(workspace)?, cache })
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
        let pairs = modules.iter().flat_map(|m| targets.iter().map(move |&t| (m, t)));
        let jobs: Vec<_> = pairs.filter(|(module, target)| module.arch.assembles_for(*target)).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut reports = Vec::new();
            while let Some((n, &(module, target))) =
                Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, jobs.get(n)?)))
            {
                reports.push((n, module, self.report(module, target)?));
                done();
            }
            Ok(reports)
        };
        let workers = thread::available_parallelism().map_or(1, |n| n.get());
        let mut reports = thread::scope(|scope| {
            let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let each = handles.into_iter().map(|h| h.join().expect("a report does not panic"));
            each.collect::<Result<Vec<_>, Error>>()
        })?
        .concat();
        reports.sort_by_key(|r| r.0);
        Ok(reports.into_iter().map(|(_, module, report)| (module, report)).collect())
    }

    /// Reports one module on one target.
    ///
    /// # Errors
    /// Returns [`Error`] if a tool fails.
    pub fn report(&self, module: &Module, target: Arch) -> Result<EntryReport, Error> {
        let (ptx, _) = lines::split(&module.text);
        let kept = self.cache.join(format!("{}.json", self.key(&ptx, target)));
        // If a file cannot be parsed, another version of this crate wrote it. This function then writes the
        // file again.
        if let Some(report) = fs::read(&kept).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
            return Ok(report);
        }
        let report = self.assemble(module.contract.symbol, &ptx, target)?;
        let text = serde_json::to_vec(&report).map_err(|e| Error::io("write", &kept)(e.into()))?;
        let part = self.scratch(&ptx, target, "json");
        fs::write(&part, text).map_err(Error::io("write", &part))?;
        fs::rename(&part, &kept).map_err(Error::io("write", &kept))?;
        Ok(report)
    }

    fn assemble(&self, entry: &str, ptx: &str, target: Arch) -> Result<EntryReport, Error> {
        let (source, cubin) = (self.scratch(ptx, target, "ptx"), self.scratch(ptx, target, "cubin"));
        fs::write(&source, ptx).map_err(Error::io("write", &source))?;
        let made = self.assembler.assemble(entry, target, &source, &cubin);
        let sass = made.and_then(|r| Ok((r, self.assembler.disassemble(entry, target, &cubin)?)));
        for scratch in [source, cubin] {
            // A file that cannot be removed only wastes space.
            let _ = fs::remove_file(scratch);
        }
        let (resources, sass) = sass?;
        Ok(EntryReport {
            entry: entry.to_owned(),
            target: target.name().to_owned(),
            registers: resources.registers,
            stack: resources.stack,
            spill_stores: resources.spill_stores,
            spill_loads: resources.spill_loads,
            static_smem: resources.static_smem,
            local_depot: ptx.contains("__local_depot"),
            serialised: resources.serialised,
            sass: Sass::parse(&sass),
        })
    }

    fn key(&self, ptx: &str, target: Arch) -> String {
        let mut hasher = DefaultHasher::new();
        (READERS, self.assembler.version(), target, ptx).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    fn scratch(&self, ptx: &str, target: Arch, extension: &str) -> PathBuf {
        self.cache.join(format!("{}-{}.{extension}.part", self.key(ptx, target), std::process::id()))
    }
}
