//! Backward passes on this machine's GPU.
use super::{KV_SHAPE, ONE, Problem, SHAPE, current, elements, ok, own_context};
use ferroflash::plan::PlanOf;
use ferroflash::{driver::*, request::*, *};

/// A backward pass on a device, with the results of its forward.
struct Backward<'a> {
    attention: &'a Attention<RawDriver>,
    problem: Problem<RawDriver>,
    d_o: RawBuffer,
    /// dQ, dK and dV, and their sizes in bytes.
    gradients: [(RawBuffer, usize); 3],
    plan: PlanOf<AttentionBackward<'a>>,
    workspace: RawBuffer,
}

impl<'a> Backward<'a> {
    /// Runs the forward. `fill` returns the numbers of Q, K, V and dO.
    fn new(
        attention: &'a Attention<RawDriver>,
        mut fill: impl FnMut(usize) -> Vec<u8>,
    ) -> Result<Self, Error> {
        let driver = attention.driver();
        let (mut problem, mut d_o) = (Problem::new(driver)?, driver.allocate(2 * elements(SHAPE))?);
        for (buffer, shape) in problem.buffers.iter_mut().zip([SHAPE, KV_SHAPE, KV_SHAPE]) {
            driver.upload(buffer, &fill(elements(shape)))?;
        }
        driver.upload(&mut d_o, &fill(elements(SHAPE)))?;
        let (forward, stream) = (problem.forward(driver), driver.stream()?);
        let plan = attention.plan(&forward)?;
        // SAFETY: the buffers outlive the stream's work, and nothing else uses them.
        unsafe { attention.launch(&plan, &forward, &stream)? };
        driver.synchronize(&stream)?;
        let gradient = |shape| {
            let bytes = 2 * elements(shape);
            driver.allocate(bytes).map(|buffer| (buffer, bytes))
        };
        let gradients = [gradient(SHAPE)?, gradient(KV_SHAPE)?, gradient(KV_SHAPE)?];
        let plan = attention.plan(&request(driver, &problem, &d_o, &gradients))?;
        let workspace = driver.allocate(plan.scratch_bytes().workspace as usize)?;
        attention.load(&plan)?;
        Ok(Backward { attention, problem, d_o, gradients, plan, workspace })
    }

    /// Enqueues the launch.
    fn enqueue(&self, stream: &RawStream) -> Result<(), Error> {
        let driver = self.attention.driver();
        let bytes = self.plan.scratch_bytes().workspace;
        let scratch = Scratch::workspace(driver.address(&self.workspace), bytes);
        let request = request(driver, &self.problem, &self.d_o, &self.gradients).scratch(scratch);
        // SAFETY: the buffers outlive the stream's work, and only the work of one stream uses them.
        unsafe { self.attention.launch(&self.plan, &request, stream) }
    }

    /// Returns the gradients of finished work, and overwrites them on the device.
    fn take(&mut self) -> Result<[Vec<u8>; 3], Error> {
        let mut all = [vec![], vec![], vec![]];
        for (taken, (buffer, bytes)) in all.iter_mut().zip(&mut self.gradients) {
            taken.resize(*bytes, 0);
            self.attention.driver().download(buffer, taken)?;
            self.attention.driver().fill(buffer, 0xff)?;
        }
        Ok(all)
    }
}

fn request(
    driver: &RawDriver,
    problem: &Problem<RawDriver>,
    d_o: &RawBuffer,
    [dq, dk, dv]: &[(RawBuffer, usize); 3],
) -> AttentionBackward<'static> {
    let view =
        |buffer, shape| TensorView::bshd(driver.address(buffer), elements(shape) as u64, DType::F16, shape);
    let [dq, dk, dv] = [view(&dq.0, SHAPE), view(&dk.0, KV_SHAPE), view(&dv.0, KV_SHAPE)];
    AttentionBackward::new(problem.forward(driver), view(d_o, SHAPE), dq, dk, dv)
}

/// Returns a function that draws f16 numbers between 1/8 and 1/2, with either sign.
fn drawn(seed: u64) -> impl FnMut(usize) -> Vec<u8> {
    let mut state = seed;
    move |count| {
        let number = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (0x3000 | (state >> 40) as u16 & 0x87ff).to_le_bytes()
        };
        (0..count).flat_map(number).collect()
    }
}

/// Returns the engine of the primary context.
fn engine() -> Result<Attention<RawDriver>, Error> {
    RawDriver::primary(0)?;
    own_context();
    Ok(Attention::new(current()?))
}

/// Decodes a finite f16.
fn decode(bits: &[u8]) -> f32 {
    let bits = u16::from_le_bytes(bits.try_into().expect("2 bytes"));
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 0x3ff) / 1024.0);
    assert_ne!(exponent, 31, "an infinity or a NaN");
    let magnitude =
        if exponent == 0 { fraction * 2f32.powi(-14) } else { (1.0 + fraction) * 2f32.powi(exponent - 15) };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

/// Keys, values and dO are all 1. Query `i` sees `i + 1` keys with equal probabilities, and the derivative of
/// every score is 0.
#[test]
#[ignore = "needs a GPU: cargo xtask test --gpu"]
fn gradients_of_equal_keys_are_known() -> Result<(), Error> {
    let attention = engine()?;
    let mut backward = Backward::new(&attention, |count| ONE.repeat(count))?;
    let stream = attention.driver().stream()?;
    backward.take()?;
    backward.enqueue(&stream)?;
    attention.driver().synchronize(&stream)?;
    let [dq, dk, dv] = backward.take()?;
    let [_, rows, heads, columns] = KV_SHAPE;
    for (name, gradient) in [("dq", dq), ("dk", dk)] {
        let largest = gradient.chunks_exact(2).map(|x| decode(x).abs()).fold(0.0, f32::max);
        assert!(largest <= 1e-3, "{name} is 0, not {largest}");
    }
    for (n, element) in dv.chunks_exact(2).enumerate() {
        let key = n / (heads * columns) % rows;
        let group = (SHAPE[2] / heads) as f32;
        let expected: f32 = (key..rows).map(|query| group / (query + 1) as f32).sum();
        let error = (decode(element) - expected).abs();
        assert!(error <= 2e-3 * expected + 1e-5, "dv of key {key}: {} is not {expected}", decode(element));
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU: cargo xtask test --gpu"]
fn repeated_launches_on_two_streams_give_identical_bits() -> Result<(), Error> {
    let attention = engine()?;
    let driver = attention.driver();
    let mut both = [Backward::new(&attention, drawn(1))?, Backward::new(&attention, drawn(2))?];
    let streams = [driver.stream()?, driver.stream()?];
    let mut first = None;
    for round in 0..50 {
        for (backward, stream) in both.iter().zip(&streams) {
            // The launches of a stream follow each other, and those of both streams may overlap.
            (0..3).try_for_each(|_| backward.enqueue(stream))?;
        }
        streams.iter().try_for_each(|stream| driver.synchronize(stream))?;
        let [a, b] = &mut both;
        let found = [a.take()?, b.take()?];
        assert_ne!(found[0], found[1], "the problems differ");
        let expected = first.get_or_insert_with(|| found.clone());
        assert!(found == *expected, "round {round} has other bits");
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU: cargo xtask test --gpu"]
fn a_backward_pass_can_be_captured_in_a_graph() -> Result<(), Error> {
    let attention = engine()?;
    let driver = attention.driver();
    let (mut backward, stream) = (Backward::new(&attention, drawn(3))?, driver.stream()?);
    backward.enqueue(&stream)?;
    driver.synchronize(&stream)?;
    let expected = backward.take()?;
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the handles live, and this test destroys each once.
    unsafe {
        ok(libcuda::cuStreamBeginCapture_v2(stream.as_raw(), libcuda::CAPTURE_THREAD_LOCAL));
        backward.enqueue(&stream)?;
        ok(libcuda::cuStreamEndCapture(stream.as_raw(), &mut graph));
        ok(libcuda::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    }
    for replay in 0..3 {
        // SAFETY: the graph is instantiated, and the buffers outlive its work.
        unsafe { ok(libcuda::cuGraphLaunch(exec, stream.as_raw())) };
        driver.synchronize(&stream)?;
        assert!(backward.take()? == expected, "replay {replay} has other bits");
    }
    // SAFETY: the handles live, and nothing uses them again.
    unsafe {
        ok(libcuda::cuGraphExecDestroy(exec));
        ok(libcuda::cuGraphDestroy(graph));
    }
    Ok(())
}
