//! Requests of named memory become requests of device addresses.
use super::{
    AlibiSlopes, Append, AttentionBackward, AttentionRequest, Bias, Descales, Groups, Index, KeysValues,
    KvCache, KvPages, KvScale, Level, ListedKeys, LseView, Mask, MaskBits, Memory, Paged, Positions, Prefix,
    Queries, Resolve, ResolveVariant, Rotary, RotaryQueries, Scores, Scratch, SharedPrefixes, Sinks, Slots,
    State, TableGradient, TensorView, TokenScales, VarlenKeys, VarlenQueries,
};

/// A view of device memory.
pub(super) trait Placed {
    /// Returns the address.
    fn place(&mut self) -> &mut u64;
}

/// The addresses of views, and their resolution: all of their fields but `address` and `elements` stay.
macro_rules! views {
    ($($view:ident { $($field:ident),* } of $bytes:expr;)*) => {$(
        impl Placed for $view {
            fn place(&mut self) -> &mut u64 {
                &mut self.address
            }
        }

        impl<M> $view<M> {
            /// Returns the view of an address.
            pub(crate) fn on<T: Resolve<M>>(
                self,
                memory: &mut T,
                name: &'static str,
            ) -> Result<$view, T::Error> {
                let $view { address, $($field,)* .. } = self;
                let (address, elements) = memory.resolve(name, address, $bytes)?;
                Ok($view { address, elements, $($field),* })
            }
        }
    )*};
}
views! {
    TensorView { dtype, shape, strides } of dtype.bytes() as u64;
    LseView { shape, strides, row_stride, unit } of 4;
    Index {} of 4;
    Slots { wide } of 4 << u64::from(wide);
    Positions { wide } of 4 << u64::from(wide);
    TokenScales { strides } of 4;
    AlibiSlopes { strides } of 4;
    Sinks {} of 4;
    TableGradient {} of 4;
    Bias { dtype, shape, strides } of dtype.bytes() as u64;
}

impl<M> KvScale<M> {
    fn on<T: Resolve<M>>(self, memory: &mut T, name: &'static str) -> Result<KvScale, T::Error> {
        Ok(match self {
            KvScale::One => KvScale::One,
            KvScale::Value(value) => KvScale::Value(value),
            KvScale::Device { address, strides, .. } => {
                let (address, elements) = memory.resolve(name, address, 4)?;
                KvScale::Device { address, elements, strides }
            }
            KvScale::Tokens(scales) => KvScale::Tokens(scales.on(memory, name)?),
        })
    }
}

impl<M> Descales<M> {
    fn on<T: Resolve<M>>(self, memory: &mut T) -> Result<Descales, T::Error> {
        let Descales { q, k, v } = self;
        let (q, k) = (q.on(memory, "q_descale")?, k.on(memory, "k_descale")?);
        Ok(Descales { q, k, v: v.on(memory, "v_descale")? })
    }
}

impl<M> KvPages<M> {
    pub(crate) fn on<T: Resolve<M>>(self, memory: &mut T) -> Result<KvPages, T::Error> {
        let [k_scale, v_scale] = self.scales;
        Ok(KvPages {
            keys: self.keys.on(memory, "cache.keys")?,
            values: self.values.on(memory, "cache.values")?,
            scales: [k_scale.on(memory, "cache.k_scale")?, v_scale.on(memory, "cache.v_scale")?],
        })
    }
}

impl<M> KvCache<M> {
    fn on<T: Resolve<M>>(self, memory: &mut T) -> Result<KvCache, T::Error> {
        let KvCache { pages, paged, lengths, max_k, total_k } = self;
        let (pages, lengths) = (pages.on(memory)?, lengths.on(memory, "cache.lengths")?);
        let paged = match paged {
            Paged::Dense { rows } => {
                Paged::Dense { rows: rows.map(|rows| rows.on(memory, "cache.rows")).transpose()? }
            }
            Paged::Table { entries, columns, stride } => {
                Paged::Table { entries: entries.on(memory, "cache.table")?, columns, stride }
            }
        };
        Ok(KvCache { pages, paged, lengths, max_k, total_k })
    }
}

impl<M> VarlenQueries<M> {
    fn on<T: Resolve<M>>(self, memory: &mut T) -> Result<VarlenQueries, T::Error> {
        let VarlenQueries { batch, cu_seqlens_q, seqused_q, max_seqlen_q } = self;
        let cu_seqlens_q = cu_seqlens_q.on(memory, "cu_seqlens_q")?;
        let seqused_q = seqused_q.map(|used| used.on(memory, "seqused_q")).transpose()?;
        Ok(VarlenQueries { batch, cu_seqlens_q, seqused_q, max_seqlen_q })
    }
}

impl<M> KeysValues<M> {
    fn on<T: Resolve<M>>(self, memory: &mut T) -> Result<KeysValues, T::Error> {
        Ok(match self {
            KeysValues::Tensors { k, v } => {
                KeysValues::Tensors { k: k.on(memory, "k")?, v: v.on(memory, "v")? }
            }
            KeysValues::Varlen { k, v, keys: VarlenKeys { cu_seqlens_k, seqused_k, max_seqlen_k } } => {
                let (k, v) = (k.on(memory, "k")?, v.on(memory, "v")?);
                let cu_seqlens_k = cu_seqlens_k.on(memory, "cu_seqlens_k")?;
                let seqused_k = seqused_k.map(|used| used.on(memory, "seqused_k")).transpose()?;
                KeysValues::Varlen { k, v, keys: VarlenKeys { cu_seqlens_k, seqused_k, max_seqlen_k } }
            }
            KeysValues::Cache(cache) => KeysValues::Cache(cache.on(memory)?),
            KeysValues::Listed(ListedKeys { pages, indices, topk }) => {
                let (pages, indices) = (pages.on(memory)?, indices.on(memory, "indices")?);
                KeysValues::Listed(ListedKeys { pages, indices, topk })
            }
        })
    }
}

impl<M> Mask<M> {
    pub(crate) fn on<T: Resolve<M>>(self, memory: &mut T) -> Result<Mask, T::Error> {
        Ok(match self {
            Mask::Full => Mask::Full,
            Mask::Causal => Mask::Causal,
            Mask::Window { left, right } => Mask::Window { left, right },
            Mask::Chunked { chunk } => Mask::Chunked { chunk },
            Mask::Prefix(Prefix::All(keys)) => Mask::Prefix(Prefix::All(keys)),
            Mask::Prefix(Prefix::Each(keys)) => Mask::Prefix(Prefix::Each(keys.on(memory, "mask.prefix")?)),
            Mask::Bits(MaskBits { address, shape, strides, .. }) => {
                let (address, bytes) = memory.resolve("mask.bits", address, 1)?;
                Mask::Bits(MaskBits { address, bytes, shape, strides })
            }
        })
    }
}

impl<M> Scores<M> {
    fn on<T: Resolve<M>>(self, memory: &mut T) -> Result<Scores, T::Error> {
        let Scores { scale, softcap, alibi, sinks, bias } = self;
        Ok(Scores {
            scale,
            softcap,
            alibi: alibi.map(|slopes| slopes.on(memory, "alibi")).transpose()?,
            sinks: sinks.map(|sinks| sinks.on(memory, "sinks")).transpose()?,
            bias: bias.map(|bias| bias.on(memory, "bias")).transpose()?,
        })
    }
}

impl<M> Level<M> {
    fn on<T: Resolve<M>>(self, memory: &mut T, name: &'static str) -> Result<Level, T::Error> {
        let Level { entries, columns, stride, lengths } = self;
        Ok(Level { entries: entries.on(memory, name)?, columns, stride, lengths: lengths.on(memory, name)? })
    }
}

impl<M> SharedPrefixes<M> {
    pub(crate) fn on<T: Resolve<M>>(self, memory: &mut T) -> Result<SharedPrefixes, T::Error> {
        const REST: &str = "shared_prefixes.rest";
        let groups = match self.groups {
            Groups::Equal { count, pages, rest } => {
                Groups::Equal { count, pages, rest: rest.on(memory, REST)? }
            }
            Groups::Varlen { queries, prefix, rest } => Groups::Varlen {
                queries: queries.on(memory)?,
                prefix: prefix.on(memory, "shared_prefixes.prefix")?,
                rest: rest.on(memory, REST)?,
            },
        };
        Ok(SharedPrefixes { groups, always: self.always })
    }
}

impl<'a, R: Memory, W> AttentionRequest<'a, R, W> {
    /// Returns the request of addresses.
    pub(crate) fn on<T, E>(mut self, memory: &mut T) -> Result<AttentionRequest<'a>, E>
    where
        T: Resolve<R, Error = E> + Resolve<W, Error = E> + ResolveVariant<R::Variant, E>,
    {
        let (rows, options) = (self.take_rows(), self.options());
        let q = self.q.on(memory, "q")?;
        let queries = match self.queries {
            Queries::Batched => Queries::Batched,
            Queries::Varlen(queries) => Queries::Varlen(queries.on(memory)?),
        };
        let (kv, o) = (self.kv.on(memory)?, self.o.on(memory, "o")?);
        let mut request = AttentionRequest {
            mask: self.mask.on(memory)?,
            scores: self.scores.on(memory)?,
            shared_prefixes: self.shared_prefixes.map(|prefixes| prefixes.on(memory)).transpose()?,
            descales: self.descales.on(memory)?,
            config: self.config,
            ..AttentionRequest::new(q, queries, kv, o).with_options(options)
        };
        let heads = self.max_logits_head.map(|heads| heads.on(memory, "max_logits_head"));
        request.max_logits_head = heads.transpose()?;
        let view = |name, view: Option<LseView<W>>| view.map(|view| view.on(memory, name)).transpose();
        request = request.with_rows(rows.try_map(view)?);
        request.variant = self.variant.map(|variant| memory.variant(variant, &request)).transpose()?;
        Ok(request)
    }
}

impl<'a, R: Memory, W> AttentionBackward<'a, R, W> {
    /// Returns the request of addresses, without scratch memory.
    #[cfg_attr(not(feature = "cudarc"), expect(dead_code, reason = "only fronts have other memory"))]
    pub(crate) fn on<T, E>(self, memory: &mut T) -> Result<AttentionBackward<'a>, E>
    where
        T: Resolve<R, Error = E> + Resolve<W, Error = E> + ResolveVariant<R::Variant, E>,
    {
        Ok(AttentionBackward {
            forward: self.forward.scratch(Scratch::None).on(memory)?,
            d_o: self.d_o.on(memory, "d_o")?,
            d_lse: self.d_lse.map(|d_lse| d_lse.on(memory, "d_lse")).transpose()?,
            dq: self.dq.on(memory, "dq")?,
            dk: self.dk.on(memory, "dk")?,
            dv: self.dv.on(memory, "dv")?,
            dsinks: self.dsinks.map(|dsinks| dsinks.on(memory, "dsinks")).transpose()?,
            dtable: self.dtable.map(|dtable| dtable.on(memory, "dtable")).transpose()?,
            dbias: self.dbias.map(|dbias| dbias.on(memory, "dbias")).transpose()?,
            scratch: Scratch::Fastest,
        })
    }
}

impl<R, W> Rotary<R, W> {
    fn on<T, E>(self, memory: &mut T) -> Result<Rotary, E>
    where
        T: Resolve<R, Error = E> + Resolve<W, Error = E>,
    {
        let Rotary { style, cos, sin, positions, first_column, queries } = self;
        Ok(Rotary {
            style,
            cos: cos.on(memory, "rotary.cos")?,
            sin: sin.on(memory, "rotary.sin")?,
            positions: positions.on(memory, "rotary.positions")?,
            first_column,
            // The memory of `q` may be that of `rotated`.
            queries: match queries {
                None => None,
                Some(RotaryQueries { q, rotated }) => {
                    let rotated = rotated.on(memory, "rotary.rotated")?;
                    Some(RotaryQueries { q: q.on(memory, "q")?, rotated })
                }
            },
        })
    }
}

impl<R, W> Append<R, W> {
    /// Returns the request of addresses.
    #[cfg_attr(not(feature = "cudarc"), expect(dead_code, reason = "only fronts have other memory"))]
    pub(crate) fn on<T, E>(self, memory: &mut T) -> Result<Append, E>
    where
        T: Resolve<R, Error = E> + Resolve<W, Error = E>,
    {
        Ok(Append {
            k: self.k.on(memory, "k")?,
            v: self.v.on(memory, "v")?,
            pages: self.pages.on(memory)?,
            slots: self.slots.on(memory, "slots")?,
            rotary: self.rotary.map(|rotary| rotary.on(memory)).transpose()?,
        })
    }
}

impl<M> State<M> {
    /// Returns the state of addresses.
    #[cfg_attr(not(feature = "cudarc"), expect(dead_code, reason = "only fronts have other memory"))]
    pub(crate) fn on<T: Resolve<M>>(self, memory: &mut T) -> Result<State, T::Error> {
        Ok(State { o: self.o.on(memory, "states.o")?, lse: self.lse.on(memory, "states.lse")? })
    }
}
