//! Inputs with strides of 0 give the results of explicit copies.
use ferroflash::driver::SimDriver;
use ferroflash::driver::{Harness, SimBuffer, SimStream};
use ferroflash::request::{AttentionRequest, Mask, TensorView};
use ferroflash::{Attention, DType, Error};
use reference::Random;

const SHAPE: [usize; 4] = [2, 70, 4, 40];

fn upload(driver: &SimDriver, elements: &[u16]) -> Result<SimBuffer, Error> {
    let bytes: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut buffer = driver.allocate(bytes.len())?;
    driver.upload(&mut buffer, &bytes)?;
    Ok(buffer)
}

#[test]
fn one_head_of_keys_for_all_heads_and_batches_and_for_the_values_too() -> Result<(), Error> {
    let attention = Attention::new(SimDriver::new("l4")?);
    let driver = attention.driver();
    let [batch, rows, heads, head_dim] = SHAPE;
    let elements = batch * rows * heads * head_dim;
    let mut random = Random::new(5);
    let (q, one) = (random.normals(DType::F16, elements), random.normals(DType::F16, rows * head_dim));
    let copies = |row: usize| std::iter::repeat_n(&one[row * head_dim..][..head_dim], heads);
    let all: Vec<u16> = (0..batch * rows).flat_map(|i| copies(i % rows)).flatten().copied().collect();
    let [q, one, all] = [&q, &one, &all].map(|elements| upload(driver, elements));
    let (q, one, all) = (q?, one?, all?);
    let dense =
        |buffer: &SimBuffer| TensorView::bshd(driver.address(buffer), elements as u64, DType::F16, SHAPE);
    let d = head_dim as i64;
    let repeats = TensorView { elements: (rows * head_dim) as u64, strides: [0, d, 0, 1], ..dense(&one) };

    let run = |kv: TensorView, mask: Mask| -> Result<Vec<u8>, Error> {
        let mut o = driver.allocate(elements * 2)?;
        driver.fill(&mut o, 0xff)?;
        let forward = AttentionRequest::dense(dense(&q), kv, kv, dense(&o)).mask(mask);
        let plan = attention.plan(&forward)?;
        // SAFETY: the views are of buffers of this driver, and the simulator has run when this returns.
        unsafe { attention.launch(&plan, &forward, &SimStream)? };
        driver.synchronize(&SimStream)?;
        let mut out = vec![0; elements * 2];
        driver.download(&o, &mut out)?;
        Ok(out)
    };
    for mask in [Mask::Full, Mask::Causal, Mask::Window { left: Some(5), right: Some(2) }] {
        assert_eq!(run(repeats, mask)?, run(dense(&all), mask)?, "{mask:?}");
    }
    let backwards = TensorView { strides: [0, -d, 0, 1], ..repeats };
    let refused = run(backwards, Mask::Full).expect_err("negative strides").to_string();
    assert!(refused.contains("k.strides") && refused.contains("negative"), "{refused}");
    // Overlapping rows are only read.
    let sliding = TensorView { strides: [0, 8, 0, 1], ..repeats };
    run(sliding, Mask::Full).map(drop)
}
