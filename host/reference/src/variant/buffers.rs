//! Device memory with copies on the host: tables of a variant's parameters.
use ferroflash::Error;
use ferroflash::driver::Harness;
use ferroflash::spec::Integers;
use kernels_gpu::exact::Copied;

/// Buffers on a device. The buffers live until the launch of their case has run. Functions of the variant
/// that run on the host read the copies.
pub struct Buffers<'d, D: Harness> {
    driver: &'d D,
    held: Vec<D::Buffer>,
    copies: Vec<Copied>,
}

impl<'d, D: Harness> Buffers<'d, D> {
    pub(super) fn new(driver: &'d D) -> Self {
        Buffers { driver, held: vec![], copies: vec![] }
    }

    /// The driver.
    pub fn driver(&self) -> &'d D {
        self.driver
    }

    /// Uploads bytes, and returns their device address.
    ///
    /// # Errors
    /// The driver's.
    pub fn bytes(&mut self, bytes: Vec<u8>) -> Result<u64, Error> {
        // An empty table must also have an address.
        let mut buffer = self.driver.allocate(bytes.len().max(4))?;
        self.driver.upload(&mut buffer, &bytes)?;
        let address = self.driver.address(&buffer);
        self.held.push(buffer);
        self.copies.push(Copied { address, bytes });
        Ok(address)
    }

    /// Uploads 32-bit words.
    ///
    /// # Errors
    /// The driver's.
    pub fn words(&mut self, words: impl IntoIterator<Item = u32>) -> Result<Integers, Error> {
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        let count = bytes.len() as u32 / 4;
        Ok(Integers { base: self.bytes(bytes)?, count, reserved: 0 })
    }

    /// Uploads numbers of 32 bits, for `GlobalInts::nearest_f32`.
    ///
    /// # Errors
    /// The driver's.
    pub fn floats(&mut self, numbers: impl IntoIterator<Item = f32>) -> Result<Integers, Error> {
        self.words(numbers.into_iter().map(f32::to_bits))
    }

    /// The copies of the tables.
    pub(super) fn copies(&self) -> Vec<Copied> {
        self.copies.clone()
    }
}
