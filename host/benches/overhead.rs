//! `cargo bench -p ferroflash` measures the host time of plans, of selection, of binding a plan to other
//! tensors, and of launches without the driver's time. The benchmark checks their limits. Run the benchmark
//! on an idle machine: on a shared machine, other programs lengthen the measured times.
//!
//! `cargo bench -p ferroflash -- TEXT` measures the tasks whose names contain TEXT.
//! `valgrind --tool=callgrind BENCHMARK TEXT --calls N` counts instructions: it runs each of these tasks N
//! times and measures no time.
#[allow(dead_code, reason = "the test uses the rest of it")]
#[path = "../tests/overhead.rs"]
mod overhead;

use std::time::{Duration, Instant};

/// The limit of the host time of a task, by the end of the task's name.
const MOST: [(&str, Duration); 2] = [("re-bind", Duration::from_nanos(400)), ("", Duration::from_micros(4))];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Cargo adds `--bench`.
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let at = arguments.iter().position(|argument| argument == "--calls").unwrap_or(arguments.len());
    let (texts, calls) = arguments.split_at(at);
    let calls: Option<u32> = calls.get(1).map(|calls| calls.parse()).transpose()?;
    let slow = std::cell::RefCell::new(String::new());
    overhead::each_launch(&|name, task| {
        if !texts.iter().all(|text| name.contains(text.as_str())) {
            return Ok(());
        }
        if let Some(calls) = calls {
            return (0..calls).try_for_each(|_| task());
        }
        let mut best = Duration::MAX;
        for _ in 0..50 {
            let start = Instant::now();
            (0..200).try_for_each(|_| task())?;
            best = best.min(start.elapsed() / 200);
        }
        println!("{name}: {best:?}");
        let limit = MOST.iter().find(|(end, _)| name.ends_with(end)).map(|(_, limit)| *limit);
        if let Some(limit) = limit.filter(|limit| best > *limit) {
            *slow.borrow_mut() += &format!("\n{name}: {best:?}, at most {limit:?}");
        }
        Ok(())
    })?;
    let slow = slow.into_inner();
    assert!(slow.is_empty(), "slower than their limits:{slow}");
    Ok(())
}
