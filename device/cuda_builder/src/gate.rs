//! The rules that every kernel must keep. This file checks the rules on the reports of ptxas and the
//! disassembler.

pub use crate::breach::{Breach, Rule};
use crate::report::EntryReport;
use crate::{Contract, Error};

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
