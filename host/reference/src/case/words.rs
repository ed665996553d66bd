//! Descriptions of cases.
use super::{Backward, Case, Pages};
use ferroflash::request::Splits;

impl std::fmt::Display for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pages::Tensors(layout) => f.write_str(layout.name()),
            Pages::Dense => write!(f, "dense NHD"),
            Pages::DenseHnd => write!(f, "dense HND"),
            Pages::Rows => write!(f, "dense NHD by cache_batch_idx"),
            Pages::Nhd(page) => write!(f, "pages of {page} NHD"),
            Pages::Hnd(page) => write!(f, "pages of {page} HND"),
            Pages::Interleaved(page) => write!(f, "interleaved pages of {page} NHD"),
        }
    }
}

impl std::fmt::Display for Case {
    /// Prints, for example, `f16 on e4m3, 7 sequences of up to 700 keys, pages of 16 NHD, queries 1, heads
    /// 16/2, head_dim 64, ..`. Prints the problem, the layout and the seed of tensors.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Pages::Tensors(layout) = self.pages {
            write!(f, "{}", if self.backward.is_some() { "backward of " } else { "" })?;
            write!(f, "{} {} seed {}", self.problem(), layout.name(), self.seed)?;
            self.score.map_or(Ok(()), |score| write!(f, " with every score {score}"))?;
            write!(f, "{}", if self.peaks.is_some() { " with peaks" } else { "" })?;
            let has_d_lse = self.backward == Some(Backward { d_lse: true });
            write!(f, "{}", if self.padded { " padded" } else { "" })?;
            return write!(f, "{}", if has_d_lse { " with d_lse" } else { "" });
        }
        let [heads_q, heads_k] = self.heads;
        write!(f, "{} on {}, {} sequences", self.dtype.name(), self.kv_dtype().name(), self.filled.len())?;
        write!(f, " of up to {} keys, {}, queries {}", self.max_k, self.pages, self.queries)?;
        write!(f, ", heads {heads_q}/{heads_k}, head_dim {}", self.head_dim)?;
        self.head_dim_v.map_or(Ok(()), |columns| write!(f, "/{columns}"))?;
        write!(f, "{}", if self.latent { " latent" } else { "" })?;
        write!(f, ", {}", self.mask)?;
        self.scale.map_or(Ok(()), |scale| write!(f, ", scale {scale}"))?;
        self.softcap.map_or(Ok(()), |softcap| write!(f, ", softcap {softcap}"))?;
        match self.splits {
            Splits::Exactly(splits) => write!(f, ", {splits} splits"),
            Splits::Keys(keys) => write!(f, ", splits of {keys} keys"),
            _ => Ok(()),
        }?;
        write!(f, "{}", if self.alibi { ", alibi" } else { "" })?;
        write!(f, "{}", if self.sinks { ", sinks" } else { "" })?;
        self.bias.map_or(Ok(()), |bias| write!(f, ", bias {}", bias.name()))?;
        let groups = self.shared.as_ref().map_or(0, |shared| shared.groups.len());
        if groups > 0 {
            write!(f, ", {groups} groups with shared prefixes")?;
        }
        write!(f, "{}", if self.poisoned_scales { ", poisoned scales of hidden keys" } else { "" })?;
        write!(f, "{}", if self.padded { ", padded" } else { "" })?;
        write!(f, "{}", if self.counters { ", counters" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_described_in_words() {
        let case = Case::new([9, 700]);
        let text =
            "f16 on f16, 2 sequences of up to 700 keys, dense NHD, queries 1, heads 4/2, head_dim 64, full";
        assert_eq!(case.to_string(), format!("{text}, counters"));
        let case = Case { softcap: Some(50.0), splits: Splits::Exactly(3), counters: false, ..case };
        assert_eq!(case.to_string(), format!("{text}, softcap 50, 3 splits"));
        let case = Case { pages: Pages::Hnd(16), splits: Splits::Keys(1024), softcap: None, ..case };
        let text = text.replace("dense NHD", "pages of 16 HND");
        assert_eq!(case.to_string(), format!("{text}, splits of 1024 keys"));
    }
}
