//! Conversions between numbers and their bytes.

/// Converts bytes to numbers.
macro_rules! numbers {
    ($type:ty, $bytes:expr) => {
        $bytes.as_chunks().0.iter().map(|b| <$type>::from_ne_bytes(*b)).collect::<Vec<_>>()
    };
}

/// Converts numbers to bytes.
macro_rules! bytes {
    ($numbers:expr) => {
        $numbers.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>()
    };
}
