//! Limits of three costs: the size of the embedded kernels, the size of packages, and the processor time of
//! `ci`.

use std::fs;
use std::time::Duration;

use crate::process::Result;

/// The compressed code of the kernels that every user's library embeds, in MB: all kernels except those of
/// the features `lineage` and `training`. The code is without source lines, which only a simulator needs.
/// Every program that uses FerroFlash contains this code. Kernels that came for one purpose, in MB:
///
/// | kernels | MB |
/// |---|---|
/// | 610 of one time (4.84 MB without `compression::numbers`) | 2.33 |
/// | 72 for mixed batches, latents of eight bits, lists of latents, products of e4m3 | 0.74 |
/// | 23 more for products of e4m3: windows, varlen tensors, head dim 64 | 0.15 |
/// | 46 for products of int8, of which 24 are on varlen tensors | 0.33 |
/// | 10 for products of e4m3 on KV caches, 6 of Hopper's for latents of eight bits | 0.23 |
/// | 26 for windows, sinks and masks of bits on KV caches of eight bits | 0.19 |
/// | 10 for products of int8 on KV caches, 8 that leave states of windows | 0.08 |
/// | 2 of Hopper's for head dims 72 and 80 | 0.01 |
/// | 8 for products of int8 at head dim 256 | 0.07 |
/// | 9 for products of e4m3 at head dim 256 | 0.06 |
/// | 11 for products of eight bits at head dim 256 on varlen tensors and pages | 0.08 |
/// | 12 for masks of bits on KV caches of eight bits, and softcap in all 36 of bits | 0.07 |
/// | 20 of Hopper's that keep the largest score of each row | 0.07 |
pub const EMBEDDED_MB: f64 = 4.5;

/// The compressed code of the kernels that the feature `training` adds, in MB. LZMA alone makes 0.39 MB of 84
/// portable kernels, about 0.06 MB of 16 of Hopper's, 0.22 MB of 48 of masks and biases, 0.06 MB of ten of
/// Hopper's for varlen sequences, 0.04 MB of eight for 192 columns of keys with 128 of values, 0.03 MB of
/// four of Hopper's for windows, about 0.08 MB of twelve of Hopper's for head dim 256, 0.05 MB of twelve for
/// gradients of biases, about 0.04 MB of four of Hopper's for softcap and slopes at head dim 128, and about
/// 0.08 MB of twenty of Hopper's for head dims 96 and 192 with 128.
pub const TRAINING_MB: f64 = 1.15;

/// Size of the largest package without machine code, in MB. At that time, it had 3.7 MB, of which the source
/// lines had 1.05 MB. 84 backward kernels came later, and 16 of Hopper's: LZMA alone makes 0.51 and 0.08 MB
/// of their code with source lines. 20 more backward kernels make about 0.15 MB, and 54 kernels of lists of
/// keys, statistics, eight-bit products and head dim 512 about 0.3 MB; 46 kernels of mixed batches,
/// eight bits on Hopper and more backward head dims about 0.35 MB. 27 kernels for latents and tensors of
/// eight bits, and for lists on Hopper, make about 0.25 MB, and 23 of e4m3 products about 0.25 MB. It is 6.59
/// MB with 62 more kernels of eight bits. 26 for KV caches of eight bits and for trees make about 0.25 MB;
/// ten for products on int8 KV caches, and eight that leave states of windows, 0.15 MB. It is 7.10 MB then.
/// Eight for products of int8 at head dim 256 make about 0.11 MB, nine of e4m3 about 0.1 MB, twelve for
/// masks of bits about 0.12 MB, eleven more of eight bits at head dim 256 about 0.12 MB, and twenty that keep
/// largest scores about 0.13 MB.
pub const PACKAGE_MB: f64 = 7.7;

/// Size of the largest package with machine code, in MB: a registry accepts 10 MiB, which are 10.48 MB.
pub const PACKAGE_WITH_CUBINS_MB: f64 = 10.2;

/// Size of the Python wheel, in MB. With the source lines of kernels, which only simulator reports show,
/// it had 6.06; these lines take 1.38 MB.
pub const WHEEL_MB: f64 = 6.0;

/// Processor time of a whole `cargo xtask ci` from a fresh clone, in minutes. ci keeps two idle cores busy
/// for 95 % of the time. It takes 122 minutes on a slow machine, where steps take about twice the time that
/// they take on a fast one. The limit is what two cores have in 90 minutes.
pub const CI_MINUTES: f64 = 180.0;

/// Processor time of `cargo xtask demo` in minutes, on a machine without any tools: two minutes on two cores.
pub const DEMO_MINUTES: f64 = 4.0;

/// Processor time of `cargo xtask test` alone, in minutes: six minutes on two cores.
pub const TEST_MINUTES: f64 = 12.0;

/// Prints the processor time of a task, if the system reports the time. A machine may be slow or busy, so the
/// text holds no budget against it. The golden figures show kernels that became slower.
pub fn show(what: &str, usual: f64) {
    if let Some(used) = processor_time() {
        println!("{}", spent(what, used, usual));
    }
}

fn spent(what: &str, used: Duration, usual: f64) -> String {
    let used = used.as_secs_f64() / 60.0;
    format!(
        "{what} used {used:.1} minutes of processor time; on idle cores, a first run uses about {usual:.0}"
    )
}

/// Prints how much of a budget is used.
///
/// # Errors
/// Returns an error if the use exceeds the budget.
pub fn hold(what: &str, used: f64, most: f64, unit: &str) -> Result {
    let line = format!("budget: {what}: {used:.2} of {most} {unit}");
    println!("{line}");
    if used <= most { Ok(()) } else { Err(format!("{line}: above the budget").into()) }
}

/// The processor time of this process and of its ended children; `None` if the system does not report the
/// time.
pub fn processor_time() -> Option<Duration> {
    of_stat(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// The sum of the four times in `stat` of proc(5). Its second field, in parentheses, may contain any text.
fn of_stat(stat: &str) -> Option<Duration> {
    const TICKS: u64 = 100;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11);
    let ticks: u64 = [(); 4].map(|()| times.next()?.parse::<u64>().ok()).into_iter().sum::<Option<u64>>()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_held_and_what_is_no_number_is_no_excuse() {
        for (used, holds) in [(0.0, true), (3.0, true), (3.01, false), (f64::NAN, false)] {
            assert_eq!(hold("x", used, 3.0, "MB").is_ok(), holds, "{used}");
        }
    }

    #[test]
    fn time_outside_of_ci_is_no_verdict() {
        let said = spent("test", Duration::from_secs(1196), 12.0);
        assert_eq!(
            said,
            "test used 19.9 minutes of processor time; on idle cores, a first run uses about 12"
        );
    }

    #[test]
    fn processor_time_is_that_of_children_too() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 5 6 0 0 110 20 300 70 20 0 1 0 9";
        assert_eq!(of_stat(stat), Some(Duration::from_secs(5)));
        assert_eq!(of_stat("7 (a) S 1"), None);
        assert_eq!(of_stat("7 (a) S 1 7 7 0 -1 4194304 5 6 0 0 x 20 300 70"), None);
    }
}
