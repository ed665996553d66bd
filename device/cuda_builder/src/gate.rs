//! The rules that every kernel must keep. This file checks the rules on the reports of ptxas and the
//! disassembler.

use std::hash::{DefaultHasher, Hash, Hasher};

pub use crate::breach::{Breach, Rule};
use crate::report::{EntryReport, Reporter};
use crate::{Arch, Contract, Error, Module, lines};

/// Largest number of wide loads that may wait for each other.
const MOST_QUEUED: u32 = 2;

/// Returns the rules that `report` breaks under `contract`.
pub fn breaches(contract: &Contract, report: &EntryReport) -> Vec<Breach> {
    let mut rules = Vec::new();
    if report.local_depot {
        rules.push(Rule::LocalDepot);
    }
    rules.extend(report.serialised.iter().cloned().map(Rule::Serialised));
    let sass = &report.sass;
    if sass.kernel_count("EXIT") == 0 {
        rules.push(Rule::Unread { instructions: sass.kernel_length() });
    }
    if sass.lost_descriptors > 0 {
        rules.push(Rule::LostDescriptors { products: sass.lost_descriptors, of: sass.kernel_count("HGMMA") });
    }
    if sass.queued_loads > MOST_QUEUED {
        rules.push(Rule::QueuedLoads { loads: sass.queued_loads });
    }
    if sass.local_loads_in_loops > 0 || sass.local_stores_in_loops > 0 {
        rules
            .push(Rule::SpillInLoop { stores: sass.local_stores_in_loops, loads: sass.local_loads_in_loops });
    }
    let (stores, loads) = (report.spill_stores, report.spill_loads);
    let allowed = contract.spills.map(|a| (a.stores, a.loads));
    let (most_stores, most_loads) = allowed.unwrap_or_default();
    if stores > most_stores || loads > most_loads {
        rules.push(Rule::Spill { stores, loads, allowed });
    }
    let breach = |rule| Breach { entry: report.entry.clone(), target: report.target.clone(), rule };
    rules.into_iter().map(breach).collect()
}

/// Fails if any entry breaks a rule.
///
/// # Errors
/// Returns [`Error::Rules`], which lists every broken rule.
pub fn check<'a>(reports: impl IntoIterator<Item = (&'a Contract, &'a EntryReport)>) -> Result<(), Error> {
    let found: Vec<_> =
        reports.into_iter().flat_map(|(contract, report)| breaches(contract, report)).collect();
    if found.is_empty() { Ok(()) } else { Err(Error::Rules(found)) }
}

/// A digest of everything that determines the report of `module` on `target`, and whether [`check`] accepts
/// the report: the PTX without source lines, the launch contract, the versions of the tools, and the code of
/// the reporter and of the rules. Modules with equal digests have equal reports, without a run of the tools.
pub fn digest(reporter: &Reporter, module: &Module, target: Arch) -> u64 {
    let mut hasher = DefaultHasher::new();
    let key = reporter.key(&lines::split(&module.text).0, target);
    (include_str!("gate.rs"), key, module.contract).hash(&mut hasher);
    hasher.finish()
}
