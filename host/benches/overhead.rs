//! `cargo bench -p ferroflash`: the host time of a launch without the driver's time, and a check that no kind
//! of launch takes more than 3 us. Run it on an idle machine: on a shared one it measures the neighbours.
#[allow(dead_code, reason = "its test is the other way to use it")]
#[path = "../tests/overhead.rs"]
mod overhead;

use std::time::{Duration, Instant};

/// The limit of a launch's host time.
const MOST: Duration = Duration::from_micros(3);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    overhead::each_launch(&|name, launch| {
        let mut best = Duration::MAX;
        for _ in 0..50 {
            let start = Instant::now();
            (0..200).try_for_each(|_| launch())?;
            best = best.min(start.elapsed() / 200);
        }
        println!("{name}: {best:?} a launch");
        assert!(best < MOST, "{name}: {best:?}, at most {MOST:?}");
        Ok(())
    })?;
    Ok(())
}
