//! The lengths in device memory during a launch of a decode case.
use super::DecodeCase;
use crate::inputs::Random;
use crate::told::Told;

impl DecodeCase {
    /// Returns the keys of each sequence, as device memory holds them.
    pub(super) fn lengths(&self, told: Told) -> Vec<i32> {
        let filled = self.filled.iter().map(|keys| *keys as i32);
        let most = self.max_k as i32;
        match told {
            Told::Filled => filled.collect(),
            Told::Fewer(seed) => {
                let mut random = Random::new(seed);
                let fewer = |keys: i32| match random.bits() % 4 {
                    0 => [0, 1, keys, keys - 1][(random.bits() % 4) as usize].clamp(0, keys),
                    _ => (random.bits() % (keys as u64 + 1)) as i32,
                };
                filled.map(fewer).enumerate().map(|(b, keys)| keys.max(self.least(b) as i32)).collect()
            }
            Told::Garbage(seed) | Told::Lost(seed) => {
                let mut random = Random::new(seed);
                let garbage = |keys: i32| {
                    let garbage = [keys, i32::MAX, -1, keys, i32::MIN, 0, most + 1, keys / 2, i32::MIN + 1];
                    garbage[(random.bits() % 9) as usize]
                };
                filled.map(garbage).collect()
            }
        }
    }

    /// Returns `cu_seqlens_q`, as device memory holds it.
    pub(super) fn told_starts(&self, told: Told) -> Vec<i32> {
        let starts = self.starts().into_iter().map(|start| start as i32);
        let Told::Lost(seed) = told else { return starts.collect() };
        let (mut random, rows) = (Random::new(!seed), self.q_rows() as i32);
        let lost = |start: i32| {
            let lost = [start, i32::MAX, -1, i32::MIN, 0, rows, rows + 1, rows - 1, start + 1];
            lost[(random.bits() % 9) as usize]
        };
        starts.map(lost).collect()
    }
}
