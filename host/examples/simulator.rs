//! Runs a kernel on the CPU, in the simulator, which checks every access and every barrier:
//! `cargo run --example simulator --features sim`.
use ferroflash::driver::{Harness, SimDriver};
use ferroflash::request::{AttentionRequest, Mask, TensorView};
use ferroflash::{Attention, DType, Error};

/// 1.0 in f16.
const ONE: u16 = 0x3c00;

pub(crate) fn main() -> Result<(), Error> {
    let attention = Attention::new(SimDriver::new("l4")?);
    let (driver, stream) = (attention.driver(), attention.driver().stream()?);
    // One sequence of 40 positions, 1 head, head dim 64. Q and K are 1.0; row j of V is j in every column.
    let shape = [1, 40, 1, 64];
    let tensor = |row: &dyn Fn(u16) -> u16| {
        let bytes: Vec<u8> = (0..40).flat_map(|j| row(j).to_le_bytes().repeat(64)).collect();
        let mut buffer = driver.allocate(bytes.len())?;
        driver.upload(&mut buffer, &bytes)?;
        Ok::<_, Error>(buffer)
    };
    let buffers = [tensor(&|_| ONE)?, tensor(&|_| ONE)?, tensor(&f16)?, tensor(&|_| 0)?];
    let [q, k, v, o] =
        buffers.each_ref().map(|buffer| TensorView::bshd(driver.address(buffer), 40 * 64, DType::F16, shape));
    let request = AttentionRequest::dense(q, k, v, o).mask(Mask::Causal);
    let plan = attention.plan(&request)?;
    println!("{} on {} blocks: {}", plan.contract().symbol, plan.grid()[0], plan.reason());
    // SAFETY: the buffers live until the stream has been waited for, and nothing else uses them.
    unsafe { attention.launch(&plan, &request, &stream)? };
    driver.synchronize(&stream)?; // the simulator's first finding would be an error here

    // All scores are equal, so row i of O is the mean of 0, 1, .. i, which is i / 2.
    let mut bytes = vec![0; 40 * 64 * 2];
    driver.download(&buffers[3], &mut bytes)?;
    let rows: Vec<f32> =
        bytes.chunks_exact(128).map(|row| f32_of(u16::from_le_bytes([row[0], row[1]]))).collect();
    println!("the first rows of O: {:?}", &rows[..8]);
    assert!(rows.iter().enumerate().all(|(i, x)| (x - i as f32 / 2.0).abs() < 0.02), "{rows:?}");
    println!("row i of O is i / 2, as expected");
    Ok(())
}

/// A whole number below 2048, in f16.
fn f16(n: u16) -> u16 {
    n.checked_ilog2().map_or(0, |e| ((e as u16 + 15) << 10) | (n << (10 - e) & 0x3ff))
}

/// The f32 of a normal f16, or 0.
fn f32_of(bits: u16) -> f32 {
    if bits == 0 { 0.0 } else { f32::from_bits((u32::from(bits) << 13) + (112 << 23)) }
}
