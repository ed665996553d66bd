//! Decode kernels on their edges.
use super::{Error, Finding, REFUSED, Row, Simulator, schedules};
use ferroflash::spec::{DECODES, DecodeInfo};
use ferroflash::{Attention, Capabilities, SimDriver};
use reference::{DecodeMemory, LoadedDecode, decode_edges};

/// Those that are asked for: all, or the one of this name, if it is one.
pub(super) fn asked(name: Option<&str>) -> Vec<&'static DecodeInfo> {
    DECODES.iter().filter(|entry| name.is_none_or(|name| entry.contract.symbol == name)).collect()
}

/// One on its edges.
pub(super) fn row(
    entry: &'static DecodeInfo,
    simulator: &Simulator<'_>,
    capabilities: &Capabilities,
) -> Result<Row, Error> {
    let mut row = Row::new(entry.contract.symbol);
    row.skipped = capabilities.runs(&entry.contract).err().map(|error| error.to_string());
    if row.skipped.is_some() {
        return Ok(row);
    }
    let cases: Vec<_> =
        decode_edges(entry).iter().map(|case| (case.clone(), DecodeMemory::new(case))).collect();
    for options in schedules(simulator.seeds) {
        let how = format!("schedule {}, copies {:?}", options.seed, options.completion).to_lowercase();
        let attention = Attention::new(SimDriver::with_options(simulator.profile, options)?);
        for (case, memory) in &cases {
            row.launches += 1;
            let place = format!("{case}, {how}");
            let lengths: Vec<i32> = case.filled.iter().map(|keys| *keys as i32).collect();
            let outcome = LoadedDecode::new(&attention, memory, Some(entry.contract.symbol))
                .and_then(|mut loaded| loaded.run(None, &lengths));
            let reports = attention.driver().take_reports();
            match outcome {
                Ok((_, outcome)) => {
                    let wrong = memory.judge(&outcome, &lengths);
                    let wrong = wrong.map_err(|error| Error::Invalid(error.to_string()))?;
                    wrong.iter().for_each(|words| row.add(Finding::new("wrong-result", &place, words)));
                }
                Err(error) if reports.is_empty() => row.add(Finding::new(REFUSED, &place, error)),
                Err(_) => reports.into_iter().for_each(|report| row.add(Finding::of(report, &place))),
            }
        }
    }
    Ok(row)
}
