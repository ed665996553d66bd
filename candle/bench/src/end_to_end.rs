//! Measures a model of 1.5e9 parameters: prompts, decode steps, and continuous batching.
use crate::clock::{row, summary, Clock};
use crate::model::{tokens, Config, Model};
use crate::side::{Shared, Side};
use candle::{Device, Result, D};
use ferroflash_candle::{KvCache, PagePool, Sequence, Step};
use serde_json::{json, Value};
use std::time::Instant;

/// The number of keys per page. candle-flash-attn's paged kernel requires a multiple of 32.
const PAGE: usize = 32;

/// Times the prefill of one sequence, from the prompt to the logits.
pub fn prefill(model: &Model, device: &Device, clock: Clock) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for length in [512usize, 2048, 4096, 8192] {
        let mut caches = model.caches(length.div_ceil(PAGE), PAGE)?;
        let mut pool = PagePool::new(length.div_ceil(PAGE), PAGE);
        let mut sequence = Sequence::new();
        pool.grow(&mut sequence, length)?;
        let mut step = Step::new(1, length, length.div_ceil(PAGE), PAGE, device)?;
        step.set(&[(&sequence, length)])?;
        let shared = Some(Shared::new(&step, vec![(length, length)])?);
        let tokens = tokens(length, model.config.vocabulary, device)?;
        let mut sides = Side::all();
        // f32 scores of 32 heads take 8 GB, in addition to the other tensors.
        sides.retain(|side| *side != Side::Plain || length <= 4096);
        let times = clock.measure(device, &sides, |side| {
            model.forward(side, &tokens, &step, shared.as_ref(), Some(&mut caches), true).map(drop)
        })?;
        rows.push(row(json!({"tokens": length}), &sides, &times, "ms", 1e3));
    }
    Ok(rows)
}

/// Times decode steps: one token per sequence, for several numbers of sequences and keys.
pub fn decode(model: &Model, device: &Device, clock: Clock) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for batch in [1, 8, 32] {
        for context in [512usize, 2048, 8192, 16384] {
            if batch * context > 1 << 18 {
                continue;
            }
            let columns = (context + 1).div_ceil(PAGE);
            let mut caches = model.caches(batch * columns, PAGE)?;
            let mut pool = PagePool::new(batch * columns, PAGE);
            let mut sequences = Vec::new();
            for _ in 0..batch {
                let mut sequence = Sequence::new();
                pool.grow(&mut sequence, context + 1)?;
                sequence.advance(context);
                sequences.push(sequence);
            }
            let mut step = Step::new(batch, batch, columns, PAGE, device)?;
            let tokens = tokens(batch, model.config.vocabulary, device)?;
            let mut sides = Side::all();
            sides.retain(|side| *side != Side::Plain || (batch == 1 && context <= 8192));
            // Each turn sets the step, as a server does, and waits for its tokens, because the next step
            // needs them.
            let times = clock.measure(device, &sides, |side| {
                let now: Vec<_> = sequences.iter().map(|sequence| (sequence, 1)).collect();
                step.set(&now)?;
                let shared = (side != Side::Ours).then(|| Shared::new(&step, vec![(1, context + 1); batch]));
                let shared = shared.transpose()?;
                let logits =
                    model.forward(side, &tokens, &step, shared.as_ref(), Some(&mut caches), false)?;
                logits.argmax(D::Minus1)?.to_vec1::<u32>().map(drop)
            })?;
            rows.push(row(json!({"context": context, "batch": batch}), &sides, &times, "ms", 1e3));
        }
    }
    Ok(rows)
}

/// A request: the number of processed tokens of its prompt, all tokens of its prompt, and the number of
/// remaining new tokens.
struct Request {
    sequence: Sequence,
    prompt: usize,
    left: usize,
}

/// Times continuous batching. 32 requests with prompts of 100 to 2000 tokens get 64 new tokens each. Every
/// step takes one token of each decoding request, and is filled up to 1024 rows with prompt tokens.
pub fn batch(model: &Model, device: &Device, rounds: usize) -> Result<Vec<Value>> {
    const ROWS: usize = 1024;
    let prompts = crate::calls::ragged(32, 2000);
    let pages: usize = prompts.iter().map(|tokens| (tokens + 64).div_ceil(PAGE)).sum();
    let mut caches = model.caches(pages, PAGE)?;
    let mut step = Step::new(32, ROWS, 2064usize.div_ceil(PAGE), PAGE, device)?;
    let text = tokens(ROWS, model.config.vocabulary, device)?;
    let mut sides = Side::all();
    sides.retain(|side| *side != Side::Plain);
    let mut times = vec![Vec::new(); sides.len()];
    for round in 0..rounds + 1 {
        for i in 0..sides.len() {
            let i = if round % 2 == 0 { i } else { sides.len() - 1 - i };
            device.synchronize()?;
            let start = Instant::now();
            serve(model, sides[i], &prompts, pages, &mut caches, &mut step, &text)?;
            device.synchronize()?;
            if round > 0 {
                times[i].push(start.elapsed().as_secs_f64());
            }
        }
    }
    let times: Vec<_> = times.into_iter().map(summary).collect();
    let what = json!({"requests": 32, "tokens": 32 * 64, "prompt_tokens": prompts.iter().sum::<usize>()});
    Ok(vec![row(what, &sides, &times, "s", 1.0)])
}

fn serve(
    model: &Model,
    side: Side,
    prompts: &[usize],
    pages: usize,
    caches: &mut [KvCache],
    step: &mut Step,
    text: &candle::Tensor,
) -> Result<()> {
    let mut pool = PagePool::new(pages, PAGE);
    let mut waiting: Vec<Request> = Vec::new();
    for &prompt in prompts {
        let mut sequence = Sequence::new();
        pool.grow(&mut sequence, prompt + 64)?;
        waiting.push(Request { sequence, prompt, left: 64 });
    }
    while !waiting.is_empty() {
        // Decoding requests come first.
        waiting.sort_by_key(|request| request.sequence.keys() < request.prompt);
        let mut room = text.dims()[0];
        let mut now = Vec::new();
        for request in &waiting {
            let left = request.prompt.saturating_sub(request.sequence.keys()).max(1);
            let count = left.min(room);
            if count > 0 {
                now.push((&request.sequence, count));
                room -= count;
            }
        }
        step.set(&now)?;
        let counts: Vec<_> = now.iter().map(|(sequence, count)| (*count, sequence.keys() + count)).collect();
        let shared = (side != Side::Ours).then(|| Shared::new(step, counts.clone())).transpose()?;
        let tokens = text.narrow(0, 0, step.tokens())?;
        let logits = model.forward(side, &tokens, step, shared.as_ref(), Some(&mut *caches), false)?;
        logits.argmax(D::Minus1)?.to_vec1::<u32>()?;
        for (request, (count, keys)) in waiting.iter_mut().zip(&counts) {
            request.sequence.advance(*count);
            if *keys >= request.prompt {
                request.left -= 1;
            }
        }
        waiting.retain(|request| request.left > 0);
    }
    Ok(())
}

/// Returns the model that all measurements use.
pub fn model(device: &Device) -> Result<Model> {
    Model::random(Config::LARGE, 1 << 15, device)
}
