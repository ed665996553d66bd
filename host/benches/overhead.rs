//! `cargo bench -p ferroflash`: how long a launch takes on the host, the driver's own time apart, and that no
//! kind takes more than 3 us. On a machine that does nothing else: a shared one tells of its neighbours.
#[allow(dead_code, reason = "its test is the other way to use it")]
#[path = "../tests/overhead.rs"]
mod overhead;

use std::time::{Duration, Instant};

/// What no launch may take.
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
