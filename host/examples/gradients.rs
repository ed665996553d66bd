//! Attention and its gradients in the simulator, which runs the kernels on the CPU: `cargo run -p ferroflash
//! --example gradients --features sim,training`.
use ferroflash::driver::{Harness, SimBuffer, SimDriver};
use ferroflash::request::{AttentionBackward, AttentionRequest, LseView, Mask, TensorView};
use ferroflash::{Attention, DType, Error};

const ONE: u16 = 0x3c00;

fn main() -> Result<(), Error> {
    let attention = Attention::new(SimDriver::new("h200")?);
    let (driver, stream) = (attention.driver(), attention.driver().stream()?);

    // One batch of 100 positions, 8 query heads on 2 key heads, head dim 64.
    let (shape, kv_shape) = ([1, 100, 8, 64], [1, 100, 2, 64]);
    let tensor = |shape: [usize; 4], value: u16| {
        let values: Vec<u8> = value.to_le_bytes().repeat(shape.iter().product());
        let mut buffer = driver.allocate(values.len())?;
        driver.upload(&mut buffer, &values)?;
        Ok::<_, Error>(buffer)
    };
    let view = |buffer: &SimBuffer, shape: [usize; 4]| {
        TensorView::bshd(driver.address(buffer), shape.iter().product::<usize>() as u64, DType::F16, shape)
    };
    let (q, k, v) = (tensor(shape, ONE)?, tensor(kv_shape, ONE)?, tensor(kv_shape, ONE)?);
    let (o, lse) = (tensor(shape, 0)?, driver.allocate(8 * 100 * 4)?);
    let lse = LseView::contiguous(driver.address(&lse), 8 * 100, [1, 8, 100]);

    let forward =
        AttentionRequest::dense(view(&q, shape), view(&k, kv_shape), view(&v, kv_shape), view(&o, shape));
    let forward = forward.mask(Mask::Causal).lse(lse);
    let plan = attention.plan(&forward)?;
    // SAFETY: the buffers live until the stream has been waited for, and nothing else uses them.
    unsafe { attention.launch(&plan, &forward, &stream)? };

    // The loss is the sum of all outputs, so the gradient of each output is 1.
    let d_o = tensor(shape, ONE)?;
    let [dq, dk, dv] = [tensor(shape, 0)?, tensor(kv_shape, 0)?, tensor(kv_shape, 0)?];
    let backward = AttentionBackward::new(
        forward,
        view(&d_o, shape),
        view(&dq, shape),
        view(&dk, kv_shape),
        view(&dv, kv_shape),
    );
    let plan = attention.plan(&backward)?;
    let bytes = plan.scratch_bytes();
    let workspace = driver.allocate(bytes.workspace as usize)?;
    let backward = backward.scratch(bytes.at(driver.address(&workspace), None));
    // SAFETY: as above.
    unsafe { attention.launch(&plan, &backward, &stream)? };
    driver.synchronize(&stream)?;
    let kernels: Vec<_> = plan.kernels().map(|kernel| kernel.symbol).collect();
    let (kernels, bytes) = (kernels.join(", "), bytes.workspace);
    println!("{kernels}, {bytes} bytes of workspace: {}", plan.reason());

    // Position i gives each of its i + 1 keys the weight 1 / (i + 1). No score changes the loss, because all
    // values are equal.
    let read = |buffer: &SimBuffer, shape: [usize; 4]| {
        let mut bytes = vec![0; shape.iter().product::<usize>() * 2];
        driver.download(buffer, &mut bytes)?;
        Ok::<Vec<f32>, Error>(bytes.as_chunks().0.iter().map(|x| f16(u16::from_le_bytes(*x))).collect())
    };
    assert!(read(&dq, shape)?.iter().chain(&read(&dk, kv_shape)?).all(|x| x.abs() < 1e-3));
    for (row, of_row) in read(&dv, kv_shape)?.chunks(2 * 64).enumerate() {
        let weights: f32 = (row..100).map(|position| 4.0 / (position + 1) as f32).sum();
        assert!(of_row.iter().all(|x| (x - weights).abs() < 2e-3 * weights), "row {row}: {}", of_row[0]);
    }
    println!("dq and dk are 0, and dv has the sums of the weights");
    Ok(())
}

/// Converts a finite f16.
fn f16(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023) / 1024.0);
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-14),
        exponent => (1.0 + fraction) * 2f32.powi(exponent - 15),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}
