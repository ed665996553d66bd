//! Backward passes on tensors of more than 4 GiB, whose offsets need more than 32 bits. The simulator's
//! memory grows only with the pages that a launch touches.
use ferroflash::driver::{Harness, SimBuffer, SimDriver, SimStream};
use ferroflash::plan::AnyRequest;
use ferroflash::request::{AttentionBackward, Mask, Scratch, TensorView};
use ferroflash::{Attention, DType};
use reference::{BackwardMemory, Binder, Case, LaunchOptions, Layout, OnDevice, Pages, Work, unguarded};

/// Strides of a tensor in elements: from one batch, row and head to the next.
type Strides = [i64; 3];

/// More than 4 GiB of 40 rows.
const ROWS: Strides = [1 << 32, (1 << 26) - 64, 256];

/// More than 4 GiB from one head to the next, and from one batch to the next.
const HEADS: Strides = [(1 << 32) + (1 << 15), 256, (1 << 31) + (1 << 13)];

/// Buffers with the addresses of their first bytes, and their sizes.
struct Buffers<'a> {
    driver: &'a SimDriver,
    all: Vec<(SimBuffer, u64, usize)>,
}

impl Buffers<'_> {
    /// Returns the address of a new buffer.
    fn allocate(&mut self, bytes: usize) -> u64 {
        let buffer = self.driver.allocate(bytes).expect("room");
        let address = self.driver.address(&buffer);
        self.all.push((buffer, address, bytes));
        address
    }

    /// Returns the address of a new buffer with this content.
    fn upload(&mut self, content: &[u8]) -> u64 {
        let address = self.allocate(content.len());
        self.write(address, content);
        address
    }

    /// Returns the buffer that has an address, and the byte there.
    fn find(&mut self, address: u64) -> (&mut SimBuffer, usize) {
        let holds = |(_, base, bytes): &&mut (SimBuffer, u64, usize)| {
            (*base..*base + *bytes as u64).contains(&address)
        };
        let (buffer, base, _) = self.all.iter_mut().find(holds).expect("a live buffer");
        (buffer, (address - *base) as usize)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        let driver = self.driver;
        let (buffer, at) = self.find(address);
        driver.upload_at(buffer, at, bytes).expect("fits");
    }

    fn read(&mut self, address: u64, bytes: usize) -> Vec<u8> {
        let (driver, mut data) = (self.driver, vec![0; bytes]);
        let (buffer, at) = self.find(address);
        driver.download_at(buffer, at, &mut data).expect("fits");
        data
    }

    /// Returns the bytes of all rows of a tensor, `[batch][row][head]`.
    fn rows(&mut self, view: &TensorView) -> Vec<u8> {
        addresses(view).flat_map(|address| self.read(address, view.shape[3] * 2)).collect()
    }

    /// Changes a view to a copy of the tensor that has these strides.
    fn move_far(&mut self, view: &mut TensorView, apart: Strides) {
        let (strides, near) = ([apart[0], apart[1], apart[2], 1], *view);
        let last = view.shape.iter().zip(strides).map(|(size, stride)| (*size as i64 - 1) * stride);
        let elements = last.sum::<i64>() as usize + 1;
        let address = self.allocate(elements * 2);
        *view = TensorView::new(address, elements as u64, view.dtype, view.shape, strides);
        for (from, to) in addresses(&near).zip(addresses(view)) {
            let row = self.read(from, near.shape[3] * 2);
            self.write(to, &row);
        }
    }
}

/// Returns the addresses of all rows of a tensor of 16 bits.
fn addresses(view: &TensorView) -> impl Iterator<Item = u64> + use<> {
    let ([batches, rows, heads, _], strides, base) = (view.shape, view.strides, view.address);
    let all = (0..batches * rows * heads).map(move |i| [i / heads / rows, i / heads % rows, i % heads]);
    all.map(move |at| {
        base + at.iter().zip(strides).map(|(index, stride)| *index as u64 * stride as u64 * 2).sum::<u64>()
    })
}

/// Runs a case on near tensors and on far ones, and expects equal bits.
#[track_caller]
fn check(card: &str, forward: Case, apart: Strides) {
    let memory = BackwardMemory::new(&forward.backward(true));
    let attention = Attention::new(SimDriver::new(card).expect("a known card"));
    let near = OnDevice::new(&attention, &memory, None).and_then(|device| device.run()).expect("runs");
    let mut buffers = Buffers { driver: attention.driver(), all: vec![] };
    let inputs: Vec<_> = memory.inputs().iter().map(|input| buffers.upload(&input.period)).collect();
    let outputs: Vec<_> = memory.outputs().iter().map(|(_, bytes)| buffers.upload(bytes)).collect();
    let options = LaunchOptions { wants_lse: true, config: None, scratch: Scratch::Fastest };
    let binder = &mut Binder::at(Some(&inputs), Some(&outputs));
    let AnyRequest::Backward(mut far) = memory.request(binder, options) else { panic!("a backward pass") };
    let AttentionBackward { forward, d_o, dq, dk, dv, .. } = &mut far;
    let [k, v] = forward.kv.tensors_mut().expect("tensors");
    for view in [&mut forward.q, k, v, &mut forward.o, d_o, dq, dk, dv] {
        buffers.move_far(view, apart);
    }
    let plan = attention.plan(&far).expect("valid");
    assert_eq!(plan.contract().symbol, near.entry, "equal kernels");
    let bytes = plan.scratch_bytes().workspace;
    let far = far.scratch(Scratch::workspace(buffers.allocate(bytes as usize), bytes));
    // SAFETY: the buffers are as large as the views state, and the simulator checks each access.
    unsafe { attention.launch(&plan, &far, &SimStream) }.expect("runs");
    attention.driver().synchronize(&SimStream).expect("no report");
    for (of, view) in [far.dq, far.dk, far.dv].iter().enumerate() {
        let (place, all) = (memory.gradients[of], unguarded(&near.outputs[of]));
        let count = view.shape[..3].iter().product();
        let expected: Vec<u8> =
            (0..count).flat_map(|row| &all[place.row(row) * 2..][..view.shape[3] * 2]).copied().collect();
        assert!(buffers.rows(view) == expected, "{}: gradient {of}", near.entry);
    }
}

#[test]
fn tensors_of_more_than_4_gib() {
    let pages = Pages::Tensors(Layout::Bshd);
    let dense = |queries: usize, keys: &[usize], [head_dim, columns]: [usize; 2]| {
        let head_dim_v = (columns != head_dim).then_some(columns);
        let case = Case { queries, heads: [2; 2], head_dim, head_dim_v, pages, ..Case::new(keys) };
        Case { mask: Mask::Causal, dtype: DType::F16, ..case }
    };
    let varlen = || {
        let case = Case { spare: [0; 2], ..dense(1, &[1], [64, 64]) };
        case.varlen([[19, 3, 2], [0, 0, 4], [21, 28, 3]])
    };
    for (card, columns) in
        [("l4", [64, 64]), ("l4", [192, 128]), ("l4", [256, 256]), ("h200", [64, 64]), ("h200", [128, 128])]
    {
        check(card, dense(40, &[40], columns), ROWS);
        check(card, dense(3, &[2, 2], columns), HEADS);
    }
    for card in ["l4", "h200"] {
        check(card, varlen(), ROWS);
        check(card, varlen(), HEADS);
    }
}
