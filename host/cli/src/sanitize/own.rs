//! The user's PTX, with its launches as text.
use super::{Console, Error, Finding, Options, REFUSED, Row};
use ptx_sim::script::{Script, ScriptError};
use ptx_sim::{Gpu, Module, Profile};
use std::fs;
use std::path::Path;

/// Runs every launch of the file `launch` on the kernels of the file `ptx`. Returns the device's name.
pub(super) fn check(
    ptx: &Path,
    launch: &Path,
    profile: &str,
    schedules: impl Iterator<Item = Options>,
    console: &Console,
) -> Result<(String, Vec<Row>), Error> {
    let read = |path: &Path| {
        fs::read_to_string(path)
            .map_err(|e| Error::Invalid(format!("{} cannot be read: {e}", path.display())))
    };
    let module = Module::parse(&read(ptx)?).map_err(|e| Error::Invalid(format!("{}:{e}", ptx.display())))?;
    let script =
        Script::parse(&read(launch)?).map_err(|e| Error::Invalid(format!("{}: {e}", launch.display())))?;
    let profile = Profile::by_name(profile).map_err(|e| Error::Invalid(e.to_string()))?;
    let device = format!("{} (simulated)", profile.name);
    let mut row = Row::new(ptx.display());
    for options in schedules {
        let how = format!("schedule {}, copies {:?}", options.seed, options.completion).to_lowercase();
        let mut gpu = Gpu::new(profile.clone(), options);
        let bar = console.waiting(&how);
        let shown = bar.clone();
        gpu.watch(move |progress| shown.set_message(progress.to_string()));
        let ran = script.run(&mut gpu, &module);
        bar.finish_and_clear();
        match ran {
            Ok(runs) if runs.is_empty() => {
                return Err(Error::Invalid(format!(
                    "{} launches nothing: add a line `run ENTRY grid X block X args ..`",
                    launch.display()
                )));
            }
            Ok(runs) => {
                let first = row.launches == 0;
                for run in runs {
                    row.launches += 1;
                    row.printed += if first { &run.outcome.output } else { "" };
                    let place = format!("{}, {how}", run.entry);
                    for kinds in run.missing() {
                        let names = kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(" or ");
                        let message = format!("{}: no report of the kind {names}", launch.display());
                        row.add(Finding::new("missing-report", &place, message));
                    }
                    run.unexpected().for_each(|report| row.add(Finding::of(report.clone(), &place)));
                }
            }
            Err(error) => {
                row.launches += 1;
                let kind = match &error {
                    ScriptError::Value { .. } | ScriptError::Memory { .. } => "wrong-result",
                    _ => REFUSED,
                };
                row.add(Finding::new(kind, how, format_args!("{}: {error}", launch.display())));
            }
        }
    }
    Ok((device, vec![row]))
}
