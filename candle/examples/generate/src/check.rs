//! Compares greedy output with the output of the f32 model on candle's plain path.
use crate::engine::{Engine, Settings};
use crate::model::{Attention, Model};
use crate::plain::Plain;
use crate::step::{Asked, Chunk, Step};
use anyhow::{Result, ensure};
use candle::Tensor;

/// A request's tokens compared with the f32 model's tokens.
pub struct Verdict {
    /// Tokens that were compared.
    pub tokens: usize,
    /// The number of ties: tokens that differ from the f32 model's best token within the error of 16 bits.
    pub ties: usize,
    /// Position of the first tie.
    pub first: Option<usize>,
    /// The worst quotient of a token: its logit's distance from the best logit in f32, divided by the
    /// permitted distance.
    pub worst: f32,
}

/// Generates from all prompts together. Then this function compares every token with the f32 model's logits
/// after the preceding tokens. A token's logit may be below the best logit by at most twice the plain path's
/// 16-bit error at this position.
///
/// # Errors
/// Returns an error if the device or attention fails.
pub fn check<'m>(
    [model, exact]: [&'m Model; 2],
    attention: Box<dyn Attention + 'm>,
    settings: &Settings,
    prompts: &[Vec<u32>],
    limit: usize,
) -> Result<Vec<Verdict>> {
    ensure!(settings.temperature == 0.0, "only the best tokens can be checked");
    let mut engine = Engine::new(model, attention, settings.clone());
    for prompt in prompts {
        engine.submit(prompt.clone(), limit)?;
    }
    let mut texts = prompts.to_vec();
    while !engine.is_idle() {
        for event in engine.step()? {
            texts[event.request].push(event.token);
        }
    }
    texts.iter().zip(prompts).map(|(text, prompt)| verdict([model, exact], text, prompt.len())).collect()
}

fn verdict([model, exact]: [&Model; 2], text: &[u32], prompt: usize) -> Result<Verdict> {
    // The last token was sampled, but the model has not processed it.
    let known = &text[..text.len() - 1];
    let [half, exact] = [logits(model, known)?, logits(exact, known)?];
    let allowed =
        ((&half - &exact)?.abs()?.max(1)?.to_vec1::<f32>()?).into_iter().map(|lost| 2.0 * lost + 1e-5);
    let best = exact.max(1)?.to_vec1::<f32>()?;
    let chosen = Tensor::new(&text[1..], exact.device())?.unsqueeze(1)?;
    let chosen = exact.gather(&chosen, 1)?.squeeze(1)?.to_vec1::<f32>()?;
    let mut verdict = Verdict { tokens: 0, ties: 0, first: None, worst: 0.0 };
    for (at, ((best, chosen), allowed)) in best.iter().zip(&chosen).zip(allowed).enumerate().skip(prompt - 1)
    {
        let (position, lacks) = (at + 1 - prompt, best - chosen);
        verdict.tokens += 1;
        if lacks == 0.0 {
            continue;
        }
        verdict.ties += 1;
        verdict.first.get_or_insert(position);
        // A NaN counts as an infinite quotient.
        let share = lacks / allowed;
        verdict.worst = verdict.worst.max(if share.is_nan() { f32::INFINITY } else { share });
    }
    Ok(verdict)
}

/// Returns the logits after each token of a text, on the plain path.
fn logits(model: &Model, text: &[u32]) -> Result<Tensor> {
    let chunk = Chunk { sequence: 0, start: 0, tokens: text, asked: Asked::All };
    let step = Step::new(vec![chunk], model.device())?;
    let mut plain = Plain::new(model.config.window());
    let logits = model.forward(&step, &mut plain)?;
    Ok(logits.expect("logits of all rows were asked for"))
}
