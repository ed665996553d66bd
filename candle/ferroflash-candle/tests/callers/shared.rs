//! Sequences that share their first pages, in a step that reads these pages once.
use candle::{DType, Device, Result, Tensor};
use ferroflash_candle::{Attend, KvCache, LatentCache, PagePool, Sequence, Step};

const PAGE: usize = 16;
const PAGES: usize = 700;
/// Keys of a prompt. Two passes pay from fewer keys on, on an H200.
const PROMPT: usize = 2048;

/// Returns 32 sequences in groups of `each`. The sequences of a group begin with the keys of one prompt.
fn sequences(pool: &mut PagePool, each: usize) -> Result<Vec<Sequence>> {
    let mut all = Vec::new();
    for _ in 0..32 / each {
        let mut prompt = Sequence::new();
        pool.grow(&mut prompt, PROMPT)?;
        prompt.advance(PROMPT);
        for _ in 0..each {
            let mut sequence = pool.share(&prompt, PROMPT);
            pool.grow(&mut sequence, 40)?;
            sequence.advance(7 + all.len());
            all.push(sequence);
        }
    }
    Ok(all)
}

fn random(shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(DType::BF16)
}

fn far(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a.to_dtype(DType::F32)? - b.to_dtype(DType::F32)?)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

/// Fills all pages with random numbers: one long sequence has all pages of another pool.
fn fill(device: &Device, write: impl FnOnce(usize, &Step) -> Result<()>) -> Result<()> {
    let (mut pool, mut all, tokens) = (PagePool::new(PAGES, PAGE), Sequence::new(), PAGES * PAGE);
    pool.grow(&mut all, tokens)?;
    let mut step = Step::new(1, tokens, PAGES, PAGE, device)?;
    step.set(&[(&all, tokens)])?;
    write(tokens, &step)
}

/// A step with shared pages gives the results of a step that reads whole sequences.
fn check(
    each: usize,
    queries: usize,
    device: &Device,
    attend: impl Fn(&Step) -> Result<Tensor>,
) -> Result<()> {
    let mut pool = PagePool::new(PAGES, PAGE);
    let sequences = sequences(&mut pool, each)?;
    let step = || Step::new(32, 32 * queries, 140, PAGE, device);
    let (mut whole, mut sharing) = (step()?, step()?.sharing());
    for step in [&mut whole, &mut sharing] {
        step.set(&sequences.iter().map(|sequence| (sequence, queries)).collect::<Vec<_>>())?;
    }
    assert_eq!(whole.shared(), [None]);
    assert_eq!(sharing.shared(), [Some((32 / each, PROMPT / PAGE))]);
    let apart = far(&attend(&sharing)?, &attend(&whole)?)?;
    assert!(apart <= 2e-2, "groups of {each}, {queries} queries: {apart}");
    // Two passes round partial results.
    assert!(apart > 0.0, "groups of {each}, {queries} queries: both steps read whole sequences");
    Ok(())
}

#[test]
fn shared_pages_are_read_once() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let (heads, key_heads, columns) = (32, 8, 128);
    let mut cache = KvCache::new((PAGES, PAGE, key_heads, columns), DType::BF16, &device)?;
    let write = |tokens, step: &Step| {
        let new = || random(&[tokens, key_heads, columns], &device);
        cache.append(&new()?, &new()?, step)
    };
    fill(&device, write)?;
    for (each, queries) in [(32, 1), (16, 1), (8, 2)] {
        let q = random(&[32 * queries, heads, columns], &device)?;
        let attend = |step: &Step| cache.attend(&q, step, &Attend::causal(0.09));
        check(each, queries, &device, attend)?;
    }
    Ok(())
}

#[test]
fn shared_pages_of_latent_caches() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let mut cache = LatentCache::new((PAGES, PAGE, 576), 512, DType::BF16, &device)?;
    fill(&device, |tokens, step| cache.append(&random(&[tokens, 576], &device)?, step))?;
    for (each, queries) in [(32, 1), (16, 2)] {
        let q = random(&[32 * queries, 16, 576], &device)?;
        let attend = |step: &Step| cache.attend(&q, step, &Attend::causal(0.07));
        check(each, queries, &device, attend)?;
    }
    Ok(())
}

/// Pages return to the pool when their last sequence is released.
#[test]
fn pages_of_several_sequences() -> Result<()> {
    let (mut pool, mut prompt) = (PagePool::new(8, PAGE), Sequence::new());
    pool.grow(&mut prompt, 40)?;
    prompt.advance(40);
    let mut shared = [40, 100, 31].map(|keys| pool.share(&prompt, keys));
    assert_eq!(shared.each_ref().map(|sequence| sequence.keys()), [32, 32, 16]);
    pool.grow(&mut shared[0], 20)?;
    assert_eq!((pool.free(), shared[0].pages()[..2] == prompt.pages()[..2]), (3, true));
    pool.release(prompt);
    assert_eq!(pool.free(), 4);
    for (sequence, free) in shared.into_iter().zip([6, 7, 8]) {
        pool.release(sequence);
        assert_eq!(pool.free(), free);
    }
    Ok(())
}
