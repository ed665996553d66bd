//! Attention of a step on the pages of one layer: single queries and prompts in separate launches.
use crate::append::CacheScales;
use crate::attend::Attend;
use crate::errors::invalid;
use crate::paged::{PagedKv, Queries, SharedPages};
use crate::step::Step;
use candle::{Result, Tensor};

/// The pages of one layer, for reading.
pub(crate) struct LayerPages<'a> {
    pub keys: &'a Tensor,
    /// In a latent cache, the first columns of the keys.
    pub values: &'a Tensor,
    pub scales: Option<CacheScales>,
    /// The scales of the rows of an int8 cache.
    pub token_scales: Option<[&'a Tensor; 2]>,
}

/// Refuses a step on pages of another size.
pub(crate) fn on_its_pages(keys: &Tensor, step: &Step) -> Result<()> {
    let page = keys.dims()[1];
    if step.page() != page {
        return Err(invalid("step.page", step.page(), format_args!("the cache's, {page}")));
    }
    Ok(())
}

impl LayerPages<'_> {
    /// Computes attention of the step's queries, and the LSE if asked. Each part of the step is one launch.
    pub fn attend(
        &self,
        q: &Tensor,
        step: &Step,
        attend: &Attend,
        lse: bool,
    ) -> Result<(Tensor, Option<Tensor>)> {
        on_its_pages(self.keys, step)?;
        let (rows, heads, head_dim) = q.dims3()?;
        if rows != step.tokens() {
            return Err(invalid("q", rows, format_args!("a row for each of the step's {}", step.tokens())));
        }
        if attend.variant.is_some() && step.parts().len() > 1 {
            return Err(invalid(
                "attend.variant",
                "a variant with single queries and prompts in one step",
                "a step of single queries or of prompts alone: its tables belong to one launch",
            ));
        }
        let columns = self.values.dims()[3];
        let (mut outputs, mut sums) = (Vec::new(), Vec::new());
        for part in step.parts() {
            let q = q.narrow(0, part.first_row, part.rows)?;
            let mut kv = PagedKv::new(self.keys, self.values, &part.table, &part.lengths);
            (kv.scales, kv.token_scales) = (self.scales, self.token_scales);
            let shared = part.shared.as_ref();
            kv.shared_prefixes =
                shared.map(|(groups, rest)| SharedPages { groups: groups.count, pages: groups.pages, rest });
            let (q, queries) = match part.even {
                // The reshape copies only if the tensor's rows are not contiguous.
                true if part.widest == 1 => (q.unsqueeze(1)?, Queries::Even),
                true if part.sequences == 1 => (q.unsqueeze(0)?, Queries::Even),
                true => (q.reshape((part.sequences, part.widest, heads, head_dim))?, Queries::Even),
                false => (q, Queries::Packed { seqlens: &part.starts, max: part.widest }),
            };
            // Each sequence before this part has one row.
            let attend = attend.sequences(part.first_row, part.sequences, part.widest)?;
            let (o, lse) = kv.run(&q, queries, &attend, lse)?;
            outputs.push(o.reshape((part.rows, heads, columns))?);
            // The LSE of a launch without varlen is `[sequences, heads, queries]`.
            let flat = |lse: Tensor| lse.transpose(0, 1)?.reshape((heads, part.rows));
            sums.extend(lse.map(|lse| if part.even { flat(lse) } else { Ok(lse) }).transpose()?);
        }
        let joined = |tensors: &[Tensor], dim| match tensors {
            [one] => Ok(one.clone()),
            several => Tensor::cat(several, dim),
        };
        let lse = (!sums.is_empty()).then(|| joined(&sums, 1)).transpose()?;
        Ok((joined(&outputs, 0)?, lse))
    }
}
