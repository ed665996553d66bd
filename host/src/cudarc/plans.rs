//! A cache of plans. A model repeats a request for each layer and each step, with other tensors.
use crate::request::{AttentionRequest, Scratch};
use crate::{Attention, Driver, Error, Plan};
use std::sync::{Mutex, PoisonError};

/// Number of cached plans: enough for the shapes of one step of a model, and for some of the previous step.
const MOST: usize = 16;

/// The most recently used plans. The key of a plan is its request without places: all that selection sees.
/// The plan that was used last comes first.
#[derive(Default)]
pub(super) struct Plans(Mutex<Vec<(AttentionRequest<'static>, Plan)>>);

impl Plans {
    /// Returns the fastest plan of a request, regardless of the size of its scratch memory. Each launch
    /// validates its own tensors.
    ///
    /// # Errors
    /// Returns the errors of planning.
    pub fn of<D: Driver>(
        &self,
        attention: &Attention<D>,
        request: &AttentionRequest<'_>,
    ) -> Result<Plan, Error> {
        let request = request.scratch(Scratch::Fastest);
        // The key has no `config`.
        if request.config.is_some() {
            return attention.plan(&request);
        }
        let key = request.anywhere();
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut kept = kept();
            if let Some(at) = kept.iter().position(|(other, _)| *other == key) {
                kept[..=at].rotate_right(1);
                return Ok(kept[0].1);
            }
        }
        let plan = attention.plan(&request)?;
        let mut kept = kept();
        kept.truncate(MOST - 1);
        kept.insert(0, (key, plan));
        Ok(plan)
    }
}
