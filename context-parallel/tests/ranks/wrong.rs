//! Wrong requests: each is an error that names the field, before a kernel or another rank gets anything.
use crate::world::{Case, LIMIT, Rank, on_ranks};
use context_parallel::{Comm, Form, Threads};
use ferroflash::Error;
use ferroflash::driver::{Harness, SimStream};
use ferroflash::request::{AttentionBackward, KeysValues, LseView, Scratch, TensorView};

type Change = Box<dyn Fn(&mut AttentionBackward<'static>) + Sync>;

/// Returns the tensor with this index.
fn tensor<'a>(of: &'a mut AttentionBackward<'static>, index: usize) -> &'a mut TensorView {
    let KeysValues::Tensors { k, v } = &mut of.forward.kv else { panic!("tensors") };
    let forward = [&mut of.forward.q, k, v, &mut of.forward.o];
    let mut all = forward.into_iter().chain([&mut of.d_o, &mut of.dq, &mut of.dk, &mut of.dv]);
    all.nth(index).expect("eight tensors")
}

const NAMES: [&str; 8] = ["q", "k", "v", "o", "d_o", "dq", "dk", "dv"];

/// Wrong values of each field of each tensor, and of the LSE and its gradient.
fn changes() -> Vec<(String, Change)> {
    let mut all: Vec<(String, Change)> = Vec::new();
    for (index, name) in NAMES.into_iter().enumerate() {
        let mut of = |what: String, change: Box<dyn Fn(&mut TensorView) + Sync>| {
            all.push((
                format!("{name}.{what}"),
                Box::new(move |request: &mut AttentionBackward<'static>| change(tensor(request, index))),
            ));
        };
        for dim in 0..4 {
            for extent in [0, 3, 5, 1 << 40, usize::MAX / 2, usize::MAX] {
                of(format!("shape[{dim}] = {extent}"), Box::new(move |view| view.shape[dim] = extent));
            }
        }
        for (dim, stride) in (0..3).flat_map(|dim| [-512, 1, i64::MAX, i64::MIN].map(|x| (dim, x))) {
            // The kernels ignore the stride of a single batch.
            if dim > 0 {
                of(format!("strides[{dim}] = {stride}"), Box::new(move |view| view.strides[dim] = stride));
            }
        }
        of("elements - 1".into(), Box::new(|view| view.elements -= 1));
        of("elements = 0".into(), Box::new(|view| view.elements = 0));
        of("address = 0".into(), Box::new(|view| view.address = 0));
        of("address + 2".into(), Box::new(|view| view.address += 2));
        of("address = MAX".into(), Box::new(|view| view.address = !15));
    }
    for is_gradient in [false, true] {
        let name = if is_gradient { "d_lse" } else { "lse" };
        let mut of = |what: &str, change: fn(&mut LseView)| {
            let change: Change = Box::new(move |request| match is_gradient {
                true => request.d_lse.as_mut().into_iter().for_each(change),
                false => request.forward.lse.as_mut().into_iter().for_each(change),
            });
            all.push((format!("{name}.{what}"), change));
        };
        of("elements - 1", |view| view.elements -= 1);
        of("shape[0] = MAX", |view| view.shape[0] = usize::MAX);
        of("shape[1] = 1", |view| view.shape[1] = 1);
        of("shape[2] = 1", |view| view.shape[2] = 1);
        of("strides[1] = MAX", |view| view.strides[1] = i64::MAX);
        of("strides[1] = -8", |view| view.strides[1] = -8);
        of("row_stride = 2", |view| view.row_stride = 2);
        of("address = 0", |view| view.address = 0);
        of("address + 1", |view| view.address += 1);
        of("address = MAX", |view| view.address = !3);
    }
    all
}

/// Whether a wrong request is refused as it should be: by its field.
fn is_named(error: &Error) -> bool {
    matches!(error, Error::Invalid { .. } | Error::Unsupported { .. })
}

/// One rank has a wrong request. Its error names a field, and the other rank ends at once.
#[test]
fn wrong_tensors_reach_no_kernel_and_no_rank() {
    let case = Case { heads: [4, 2], ..Case::new("").packed(&[12], 2) };
    let (mut count, changes) = (0, changes());
    for (form, (name, change)) in
        Form::ALL.into_iter().flat_map(|form| changes.iter().map(move |of| (form, of)))
    {
        let outcomes = on_ranks(Threads::new(2, LIMIT), |index, transport| {
            let mut rank = Rank::new(&case, index).expect("memory");
            if index == 0 {
                change(&mut rank.request);
            }
            rank.run(form, &transport)
        });
        let errors: Vec<_> = outcomes.into_iter().map(|of| of.expect_err(name)).collect();
        assert!(is_named(&errors[0]), "{form:?}, {name}: {}", errors[0]);
        let other = errors[1].to_string();
        assert!(other.contains("rank 0 has ended"), "{form:?}, {name}: {other}");
        count += 1;
    }
    println!("{count} wrong requests");
}

/// A rank without positions checks its request, too.
#[test]
fn ranks_without_positions_check_their_requests() {
    let case = Case { heads: [4, 2], ..Case::new("").contiguous(&[1], 2) };
    assert!(case.chunks.of(0).is_empty());
    for form in Form::ALL {
        for (index, dim) in (0..8).flat_map(|index| [0, 2, 3].map(|dim| (index, dim))) {
            for extent in [0, 3, usize::MAX] {
                let transports = Threads::new(2, LIMIT);
                let mut rank = Rank::new(&case, 0).expect("memory");
                tensor(&mut rank.request, index).shape[dim] = extent;
                let comm = Comm::new(&rank.attention, &transports[0], &SimStream);
                let error = form.backward_workspace(&comm, &case.chunks, &rank.request);
                let error = error.expect_err(NAMES[index]);
                assert!(is_named(&error), "{form:?}, {}.shape[{dim}]: {error}", NAMES[index]);
            }
        }
    }
}

/// A workspace that is too small, or lies where no memory can be, is refused before anything is sent.
#[test]
fn wrong_workspaces_reach_no_rank() {
    let case = Case { heads: [4, 2], ..Case::new("").packed(&[40], 2) };
    let transports = Threads::new(2, LIMIT);
    let rank = Rank::new(&case, 0).expect("memory");
    let comm = Comm::new(&rank.attention, &transports[0], &SimStream);
    for form in Form::ALL {
        let [forward, backward] = [
            form.attention_workspace(&comm, &case.chunks, &rank.request.forward).expect("bytes"),
            form.backward_workspace(&comm, &case.chunks, &rank.request).expect("bytes"),
        ];
        let memory = rank.attention.driver().allocate(backward.max(forward) as usize).expect("memory");
        let address = rank.attention.driver().address(&memory);
        let wrong =
            |bytes: u64| [(address, 0), (address, bytes / 2), (u64::MAX, bytes), (u64::MAX - 700, u64::MAX)];
        for (address, bytes) in wrong(forward) {
            let request = rank.request.forward.scratch(Scratch::workspace(address, bytes));
            // SAFETY: the simulator checks every access.
            let outcome = unsafe { form.attention(&comm, &case.chunks, &request) };
            let error = outcome.expect_err("refused");
            assert!(error.to_string().contains("workspace.bytes"), "{form:?}: {error}");
        }
        for (address, bytes) in wrong(backward) {
            let request = rank.request.scratch(Scratch::workspace(address, bytes));
            // SAFETY: as above.
            let outcome = unsafe { form.backward(&comm, &case.chunks, &request) };
            let error = outcome.expect_err("refused");
            assert!(error.to_string().contains("workspace"), "{form:?}: {error}");
        }
    }
}
