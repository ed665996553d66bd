//! Wrong requests of decode, ranks that disagree, and ranks that end.
use crate::{HEADS, Results, run};
use context_parallel::{Chunks, Threads};
use ferroflash::Error;
use ferroflash::request::{AttentionRequest, Region};
use std::time::{Duration, Instant};

type Change = fn(&mut AttentionRequest<'_>, &mut Region);

/// Runs two ranks, of which rank 0 has a changed request.
fn outcomes(change: Change) -> Vec<Result<Results, Error>> {
    let chunks = Chunks::contiguous(77, 2).expect("chunks");
    let begun = Instant::now();
    let all = std::thread::scope(|scope| {
        let chunks = &chunks;
        let spawn = |(rank, transport): (usize, Threads)| {
            let change = if rank == 0 { change } else { |_: &mut AttentionRequest<'_>, _: &mut Region| () };
            scope.spawn(move || run((77, chunks), &transport, rank, change))
        };
        let transports = Threads::new(2, Duration::from_secs(600)).into_iter().enumerate();
        let all: Vec<_> = transports.map(spawn).collect();
        all.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    all
}

/// Each wrong value is refused by its name, before another rank gets anything.
#[test]
fn wrong_requests_reach_no_kernel_and_no_rank() {
    let wrong: [(&str, Change); 16] = [
        ("no queries", |request, _| request.q.shape[0] = 0),
        ("many queries", |request, _| request.q.shape[0] = usize::MAX),
        ("two queries of a sequence", |request, _| request.q.shape[1] = 2),
        ("no heads", |request, _| request.q.shape[2] = 0),
        ("no rows of o", |request, _| request.o.shape[0] = 0),
        ("an absurd o", |request, _| request.o.shape = [usize::MAX; 4]),
        ("three heads of o", |request, _| request.o.shape[2] = 3),
        ("an o that ends", |request, _| request.o.elements -= 1),
        ("an o of no place", |request, _| request.o.address = !15),
        ("no rows of the lse", |request, _| request.lse.iter_mut().for_each(|lse| lse.shape[0] = 0)),
        ("an lse that ends", |request, _| request.lse.iter_mut().for_each(|lse| lse.elements -= 1)),
        ("a sink too few", |request, _| {
            request.scores.sinks.iter_mut().for_each(|sinks| sinks.elements = HEADS[0] as u64 - 1);
        }),
        ("no messages", |_, messages| messages.bytes = 0),
        ("short messages", |_, messages| messages.bytes /= 2),
        ("messages of no place", |_, messages| messages.address = u64::MAX),
        ("messages beyond all memory", |_, messages| {
            *messages = Region { address: u64::MAX - 700, bytes: u64::MAX };
        }),
    ];
    for (name, change) in wrong {
        let errors: Vec<Error> =
            outcomes(change).into_iter().map(|of| of.map(|_| ()).expect_err(name)).collect();
        let is_named = matches!(&errors[0], Error::Invalid { .. } | Error::Unsupported { .. });
        assert!(is_named, "{name}: {}", errors[0]);
        assert!(errors[1].to_string().contains("rank 0 has ended"), "{name}: {}", errors[1]);
    }
}

/// Statistics are refused by name on all ranks.
#[test]
fn statistics_are_refused_by_name() {
    let all: [(&str, Change); 2] = [
        ("max_logits", |request, _| request.max_logits = request.lse),
        ("entropy", |request, _| request.entropy = request.lse),
    ];
    for (name, change) in all {
        let error = outcomes(change).swap_remove(0).map(|_| ()).expect_err(name).to_string();
        assert!(error.contains(name) && error.contains("docs/several-gpus.md"), "{error}");
    }
}
