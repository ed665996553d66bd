//! Tensor maps that launches have used. A driver encodes them on the host, without the device, but in longer
//! than a launch may take.
use crate::{Boxes, Driver, Error};
use spec::TensorMap;
use std::sync::{Mutex, OnceLock};

/// Maps that are kept: of 64 layers with four tensors each all, if none share a place. 100 KB.
const PLACES: usize = 512;

/// A map and what it is of.
type Place = Mutex<Option<(Boxes, TensorMap)>>;

/// The maps of one driver. Each has one place where it may be kept, by a hash; a later one takes it over.
#[derive(Default)]
pub(crate) struct Maps {
    /// Made with the first map, so that nobody has them who wants none.
    places: OnceLock<Box<[Place]>>,
}

impl Maps {
    /// The map of a tensor: what is kept, else what the driver encodes. Waits for nobody: a place that
    /// another thread looks at is passed over.
    ///
    /// # Errors
    /// The driver's.
    pub fn of<D: Driver>(&self, driver: &D, boxes: &Boxes) -> Result<TensorMap, Error> {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| Mutex::new(None)).collect());
        let mut place = places[hash(boxes) as usize % PLACES].try_lock();
        if let Ok(place) = &place
            && let Some((of, map)) = &**place
            && of == boxes
        {
            return Ok(*map);
        }
        let map = driver.tensor_map(boxes)?;
        if let Ok(place) = &mut place {
            **place = Some((*boxes, map));
        }
        Ok(map)
    }
}

/// Mixes what tensors of a program differ in.
fn hash(boxes: &Boxes) -> u64 {
    let [columns, rows, heads, batches] = boxes.extents.map(u64::from);
    let [row_bytes, head_bytes, batch_bytes] = boxes.strides;
    let words = [
        boxes.address,
        rows << 32 | columns,
        batches << 32 | heads,
        row_bytes,
        head_bytes,
        batch_bytes,
        u64::from(boxes.of[1]) << 32 | u64::from(boxes.of[0]) << 2 | boxes.kind as u64,
    ];
    // Fibonacci hashing, whose upper bits are the good ones.
    let mixed =
        words.iter().fold(0u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed >> 32
}
