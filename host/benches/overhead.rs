//! `cargo bench -p ferroflash` measures the host time of plans, and of launches without the driver's time.
//! The benchmark checks that no plan and no launch takes more than 4 us. Run the benchmark on an idle
//! machine: on a shared machine, other programs lengthen the measured times.
#[allow(dead_code, reason = "the test uses the rest of it")]
#[path = "../tests/overhead.rs"]
mod overhead;

use std::time::{Duration, Instant};

/// The limit of the host time of a plan or a launch.
const MOST: Duration = Duration::from_micros(4);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    overhead::each_launch(&|name, task| {
        let mut best = Duration::MAX;
        for _ in 0..50 {
            let start = Instant::now();
            (0..200).try_for_each(|_| task())?;
            best = best.min(start.elapsed() / 200);
        }
        println!("{name}: {best:?}");
        assert!(best < MOST, "{name}: {best:?}, at most {MOST:?}");
        Ok(())
    })?;
    Ok(())
}
