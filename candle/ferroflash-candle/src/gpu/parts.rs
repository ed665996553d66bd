//! Attention of a step on the pages of one layer: single queries and prompts in separate launches.
use crate::attend::Attend;
use crate::errors::invalid;
use crate::gpu::append::CacheScales;
use crate::gpu::latent_scale::LatentScale;
use crate::gpu::paged::{PagedKv, SharedPages};
use crate::gpu::run::Results;
use crate::gpu::step::Step;
use candle::{Result, Tensor};
use ferroflash::request::RowOutputs;

/// The pages of one layer.
#[derive(Debug)]
pub(crate) struct LayerPages {
    pub keys: Tensor,
    /// In a latent cache, the first columns of the keys.
    pub values: Tensor,
    pub scales: Option<CacheScales>,
    /// The scales of the rows of an int8 cache, of keys and of values.
    pub token_scales: Option<[Tensor; 2]>,
    /// The scale of a latent cache of u8.
    pub latent_scale: Option<LatentScale>,
}

impl LayerPages {
    /// Returns pages of 16-bit numbers.
    pub fn new(keys: Tensor, values: Tensor) -> Self {
        LayerPages { keys, values, scales: None, token_scales: None, latent_scale: None }
    }

    /// Refuses a step on pages of another size.
    pub fn are_of(&self, step: &Step) -> Result<()> {
        let page = self.keys.dims()[1];
        if step.page() != page {
            return Err(invalid("step.page", step.page(), format_args!("the cache's, {page}")));
        }
        Ok(())
    }

    /// Computes attention of the step's queries, and the wanted outputs of rows, f32 `(heads, tokens)`. Each
    /// part of the step is one launch.
    pub fn attend(
        &self,
        q: &Tensor,
        step: &Step,
        attend: &Attend,
        wanted: RowOutputs<bool>,
    ) -> Result<Results> {
        self.are_of(step)?;
        let (rows, heads, head_dim) = q.dims3()?;
        if rows != step.tokens() {
            return Err(invalid("q", rows, format_args!("a row for each of the step's {}", step.tokens())));
        }
        if attend.variant.is_some() && step.parts().len() > 1 {
            let value = "a variant with single queries and prompts in one step";
            let expected = "a step of single queries or of prompts alone: its tables belong to one launch";
            return Err(invalid("attend.variant", value, expected));
        }
        let columns = self.values.dims()[3];
        let (mut outputs, mut values) = (Vec::new(), RowOutputs::<Vec<Tensor>>::default());
        for part in step.parts() {
            let q = q.narrow(0, part.first_row, part.rows)?;
            let mut kv = PagedKv::new(&self.keys, &self.values, &part.table, &part.lengths);
            (kv.scales, kv.latent_scale) = (self.scales, self.latent_scale);
            kv.token_scales = self.token_scales.as_ref().map(|[keys, values]| [keys, values]);
            let shared = part.shared.as_ref();
            kv.shared_prefixes =
                shared.map(|(groups, rest)| SharedPages { groups: groups.count, pages: groups.pages, rest });
            let (q, varlen) = match part.even {
                // The reshape copies only if the tensor's rows are not contiguous.
                true if part.widest == 1 => (q.unsqueeze(1)?, None),
                true if part.sequences == 1 => (q.unsqueeze(0)?, None),
                true => (q.reshape((part.sequences, part.widest, heads, head_dim))?, None),
                false => (q, Some((&part.starts, part.widest))),
            };
            // Each sequence before this part has one row.
            let attend = attend.sequences(part.first_row, part.sequences, part.widest)?;
            let (o, rows) = kv.run(&q, varlen, &attend, wanted)?;
            outputs.push(o.reshape((part.rows, heads, columns))?);
            // An output of rows of a launch without varlen is `[sequences, heads, queries]`.
            let flat = |rows: Tensor| match part.even {
                true => rows.transpose(0, 1)?.reshape((heads, part.rows)),
                false => Ok(rows),
            };
            values = values.zip(rows).try_map(|_, (mut all, rows)| {
                all.extend(rows.map(flat).transpose()?);
                Ok::<_, candle::Error>(all)
            })?;
        }
        let joined = |tensors: &[Tensor], dim| match tensors {
            [one] => Ok(one.clone()),
            several => Tensor::cat(several, dim),
        };
        let rows = values.try_map(|_, all| (!all.is_empty()).then(|| joined(&all, 1)).transpose())?;
        Ok((joined(&outputs, 0)?, rows))
    }
}
