//! The largest score of each query head: a kernel finds it among the largest scores of rows, behind all other
//! passes. Without an output for those of rows, they lie in the workspace.
use crate::launch::Launch;
use crate::lower;
use crate::place::Place;
use crate::request::{AttentionRequest, LseView};
use crate::{Error, Problem};
use spec::{Entry, HeadMaxima};

/// A request without its largest scores of heads, which needs those of rows.
pub(super) struct OfRows<'a> {
    /// The request, with the rest of the scratch memory.
    pub request: AttentionRequest<'a>,
    /// The largest scores of rows.
    maxima: LseView,
    /// Bytes of workspace for the largest scores of rows.
    pub bytes: u64,
}

/// Returns the place of the kernel.
pub(super) fn place() -> Place {
    Place::of(&<HeadMaxima as Entry>::CONTRACT)
}

impl<'a> OfRows<'a> {
    /// Returns the request that wants the largest scores of rows instead of those of heads. Returns `None` if
    /// a valid request wants none of heads.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the rows span too many elements.
    pub fn of(r: &AttentionRequest<'a>, p: &Problem) -> Result<Option<Self>, Error> {
        if r.max_logits_head.is_none() {
            return Ok(None);
        }
        let [[batches, rows, heads, _], ..] = p.shapes();
        // Outputs of rows lie alike.
        let alike = r.rows().named().find_map(|(_, view)| view.copied());
        let alike = alike.unwrap_or_else(|| LseView::contiguous(0, 0, [batches, heads, rows]));
        let extents = [batches, heads].into_iter().zip(alike.strides);
        // Validation has checked that these are below 2^64, if the caller has such an output.
        let span = extents.fold(rows as u64, |sum, (extent, stride)| {
            sum.saturating_add((extent as u64 - 1).saturating_mul(if extent > 1 { stride as u64 } else { 0 }))
        });
        if span >= 1 << 32 {
            let feature = format_args!("max_logits_head of rows that span {span} elements");
            return Err(Error::unsupported(feature, "its kernel numbers them in 32 bits; split the batch"));
        }
        let bytes = if r.max_logits.is_some() { 0 } else { (span * 4).next_multiple_of(16) };
        let own = LseView { address: r.scratch.address(), elements: span, ..alike };
        let maxima = r.max_logits.map_or(own, |view| LseView { elements: span, ..view });
        let (max_logits, scratch) = (Some(maxima), r.scratch.behind(bytes));
        let request = AttentionRequest { max_logits, max_logits_head: None, scratch, ..*r };
        Ok(Some(OfRows { request, maxima, bytes }))
    }

    /// Adds the step that finds the largest scores of the heads of `r`.
    pub fn lower(&self, r: &AttentionRequest<'_>, p: &Problem, launch: &mut Launch) {
        if let Some(heads) = r.max_logits_head {
            lower::head_maxima((&self.request, p), &self.maxima, heads, place(), launch);
        }
    }
}

/// Checks that requests both want the largest scores of heads, or neither.
///
/// # Errors
/// Returns [`Error::Invalid`].
pub(super) fn are_as_planned(
    asked: &AttentionRequest<'_>,
    planned: &AttentionRequest<'_>,
) -> Result<(), Error> {
    let word = |wants| if wants { "some" } else { "none" };
    let wants = [asked, planned].map(|r| (r.max_logits_head.is_some(), r.max_logits.is_some()));
    let [(asked, _), (planned, _)] = wants;
    if asked != planned {
        let expected = format_args!("the plan is for {}; make another plan", word(planned));
        return Err(Error::invalid("max_logits_head", word(asked), expected));
    }
    if asked && wants[0] != wants[1] {
        let expected =
            format_args!("beside max_logits_head, the plan is for {}; make another plan", word(wants[1].1));
        return Err(Error::invalid("max_logits", word(wants[0].1), expected));
    }
    Ok(())
}
