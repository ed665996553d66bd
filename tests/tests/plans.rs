//! Tests that a plan only launches the request for which it was made, in memory of at least the planned size.
use ferroflash::driver::Harness;
use ferroflash::driver::SimDriver;
use ferroflash::plan::Request;
use ferroflash::request::{
    AttentionRequest, Index, KvCache, KvPages, LseUnit, LseView, Merge, Scratch, State, TensorView,
};
use ferroflash::{Attention, DType, Error};

const KEYS: usize = 1024;
const DIM: usize = 64;

/// A simulator, and the buffers that live as long as the simulator.
struct Device {
    attention: Attention<SimDriver>,
    buffers: Vec<<SimDriver as Harness>::Buffer>,
}

impl Device {
    fn new() -> Self {
        Device { attention: Attention::new(SimDriver::new("l4").expect("a known card")), buffers: vec![] }
    }

    /// Copies these bytes to the device, and returns their address.
    fn put(&mut self, name: &str, bytes: &[u8]) -> u64 {
        let driver = self.attention.driver();
        let mut buffer = driver.allocate_named(name, bytes.len()).expect("room");
        driver.upload(&mut buffer, bytes).expect("a copy");
        let address = driver.address(&buffer);
        self.buffers.push(buffer);
        address
    }

    /// `rows` rows of one head, filled with zeros.
    fn rows(&mut self, name: &str, rows: usize) -> TensorView {
        let address = self.put(name, &vec![0; rows * DIM * 2]);
        TensorView::bshd(address, (rows * DIM) as u64, DType::F16, [1, rows, 1, DIM])
    }

    /// Launches the request `other` with the plan of the request `own`.
    fn launch<R: Request>(&self, own: &R, other: &R) -> Result<(), Error> {
        let plan = self.attention.plan(own).expect("a plan");
        let stream = self.attention.driver().stream().expect("a stream");
        // SAFETY: every buffer is as large as its view states, and no other launch runs.
        unsafe { self.attention.launch(&plan, other, &stream) }
    }
}

/// Checks that the launch was refused with an error that contains all of these words.
#[track_caller]
fn check_refused(device: &Device, outcome: Result<(), Error>, words: &[&str]) {
    let error = outcome.expect_err("it is not what the plan was made for").to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}: {words:?}");
    assert!(device.attention.driver().take_reports().is_empty());
}

fn cached(device: &mut Device, dtype: DType) -> KvCache {
    let mut pages = |name| {
        let address = device.put(name, &vec![0; KEYS * DIM * dtype.bytes()]);
        TensorView::bshd(address, (KEYS * DIM) as u64, dtype, [1, KEYS, 1, DIM])
    };
    let pages = KvPages::new(pages("k_cache"), pages("v_cache"));
    let lengths = device.put("seqused_k", &(KEYS as i32).to_ne_bytes());
    KvCache::dense(pages, Index::new(lengths, 1))
}

#[test]
fn a_workspace_that_is_smaller_than_was_offered() {
    let mut device = Device::new();
    let small = Scratch::workspace(device.put("workspace", &[0; 16]), 16);
    let cache = cached(&mut device, DType::F16);
    let decode = AttentionRequest::cached(device.rows("q", 1), cache, device.rows("o", 1));
    check_refused(
        &device,
        device.launch(&decode.scratch(Scratch::Fastest), &decode.scratch(small)),
        &["workspace.bytes: 16", "needs"],
    );
    let [q, k, v, o] = [("q", 32), ("k", 4096), ("v", 4096), ("o", 32)].map(|(name, n)| device.rows(name, n));
    let forward = AttentionRequest::dense(q, k, v, o);
    check_refused(
        &device,
        device.launch(&forward.scratch(Scratch::Fastest), &forward.scratch(small)),
        &["workspace.bytes: 16", "needs"],
    );
}

#[test]
fn a_cache_of_another_type() {
    let mut device = Device::new();
    let [sixteen, eight] = [DType::F16, DType::E4m3].map(|dtype| cached(&mut device, dtype));
    let (q, o) = (device.rows("q", 1), device.rows("o", 1));
    let [sixteen, eight] = [sixteen, eight].map(|cache| AttentionRequest::cached(q, cache, o));
    let check = |plan, request, words: &[&str]| check_refused(&device, device.launch(plan, request), words);
    check(&sixteen, &eight, &["cache.keys.dtype: e4m3", "the plan is for f16"]);
    check(&eight, &sixteen, &["cache.keys.dtype: f16", "the plan is for e4m3"]);
}

#[test]
fn states_that_differ_from_the_third_on() {
    let mut device = Device::new();
    let rows = 8;
    let bytes = rows * DIM * 4;
    let (all, values) =
        (device.put("states", &vec![0; 3 * bytes]), device.put("lse", &vec![0; 3 * rows * 4]));
    let tensor = |address| TensorView::bshd(address, (rows * DIM) as u64, DType::F32, [1, rows, 1, DIM]);
    let states = [0, 1, 2].map(|i| {
        let lse = LseView::contiguous(values + (i * rows * 4) as u64, rows as u64, [1, 1, rows]);
        State::new(tensor(all + (i * bytes) as u64), lse)
    });
    let o = tensor(device.put("o", &vec![0; bytes]));
    let changes: [fn(&mut State); 3] =
        [|s| s.o.dtype = DType::F16, |s| s.lse.unit = LseUnit::Two, |s| s.o.shape = [1, 1, 1, 8]];
    for change in changes {
        let mut others = states;
        change(&mut others[2]);
        let outcome = device.launch(&Merge::new(&states, o), &Merge::new(&others, o));
        check_refused(&device, outcome, &["states[2]"]);
    }
}

#[test]
fn a_state_whose_values_lie_in_its_own_rows() {
    let mut device = Device::new();
    let address = device.put("states", &vec![0; 64 * DIM * 4]);
    let o = TensorView::bshd(address, (64 * DIM) as u64, DType::F32, [1, 64, 1, DIM]);
    let states = [State::new(o, LseView::contiguous(address + 128, 64, [1, 1, 64]))];
    let error = device.attention.plan(&Merge::new(&states, o)).expect_err("written before it is read");
    assert!(error.to_string().contains("states.lse"), "{error}");
}
