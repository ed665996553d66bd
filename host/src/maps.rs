//! A cache of encoded tensor maps. A driver encodes tensor maps on the host, which takes too long to repeat
//! for every launch.
use crate::{Driver, Error, MapDescription};
use spec::TensorMap;
use std::sync::{Mutex, OnceLock};

/// The number of places. 64 layers with four tensors each need 256 places; further places make collisions
/// rare. The cache takes 100 KB.
const PLACES: usize = 512;

/// A tensor map and its description.
type Place = Mutex<Option<(MapDescription, TensorMap)>>;

/// The tensor maps of one driver. A hash selects the place of each tensor map; a later tensor map replaces an
/// earlier one.
#[derive(Default)]
pub(crate) struct Maps {
    /// Allocated lazily, with the first tensor map.
    places: OnceLock<Box<[Place]>>,
}

impl Maps {
    /// Returns the tensor map of a tensor: from the cache, or newly encoded. This function never waits: if
    /// another thread holds the place, it encodes the tensor map again.
    ///
    /// # Errors
    /// Returns an error if the driver fails.
    pub fn of<D: Driver>(&self, driver: &D, description: &MapDescription) -> Result<TensorMap, Error> {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| Mutex::new(None)).collect());
        let mut place = places[hash(description) as usize % PLACES].try_lock();
        if let Ok(place) = &place
            && let Some((of, map)) = &**place
            && of == description
        {
            return Ok(*map);
        }
        let map = driver.tensor_map(description)?;
        if let Ok(place) = &mut place {
            **place = Some((*description, map));
        }
        Ok(map)
    }
}

/// Hashes the fields in which the tensors of a program differ.
fn hash(description: &MapDescription) -> u64 {
    let [columns, rows, heads, batches] = description.extents.map(u64::from);
    let [row_bytes, head_bytes, batch_bytes] = description.strides;
    let words = [
        description.address,
        rows << 32 | columns,
        batches << 32 | heads,
        row_bytes,
        head_bytes,
        batch_bytes,
        u64::from(description.box_shape[1]) << 32
            | u64::from(description.box_shape[0]) << 2
            | description.kind as u64,
    ];
    // Fibonacci hashing: the upper bits are well mixed.
    let mixed =
        words.iter().fold(0u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed >> 32
}
