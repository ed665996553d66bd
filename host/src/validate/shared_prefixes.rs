//! Checks of shared prefixes.
use super::cache::{self, index};
use super::{Part, disjoint, names};
use crate::request::{Groups, KeysValues, Level, MAX_SEQLEN, Paged, SharedPrefixes};
use crate::{Error, Problem};

names!(
    GROUPS "shared_prefixes.groups" PREFIX_TABLE "shared_prefixes.prefix.entries"
    PREFIX_LENGTHS "shared_prefixes.prefix.lengths" REST_TABLE "shared_prefixes.rest.entries"
    REST_LENGTHS "shared_prefixes.rest.lengths"
);

/// Checks the prefixes of a valid problem, which must not overlap the parts of the request that the kernels
/// write. Returns the prefixes' parts.
pub(super) fn shared_prefixes(
    prefixes: &SharedPrefixes,
    kv: &KeysValues,
    p: &Problem,
    written: &[Part],
) -> Result<[Part; 5], Error> {
    let (KeysValues::Cache(kv), Some(cache)) = (kv, p.cache) else { return Err(without_table()) };
    let Paged::Table { columns, .. } = kv.paged else { return Err(without_table()) };
    let count = prefixes.count();
    if count == 0 || count > p.batch {
        let expected = format_args!("it must be 1 or more and at most {}, the number of sequences", p.batch);
        return Err(Error::invalid("shared_prefixes.groups", count, expected));
    }
    let none = |name| (name, None);
    let read: [Part; 5] = match prefixes.groups {
        Groups::Equal { count, pages, rest } => {
            if !p.batch.is_multiple_of(count) {
                let expected = format_args!(
                    "it must divide {}, the number of sequences; pass groups in device memory",
                    p.batch
                );
                return Err(Error::invalid("shared_prefixes.groups", count, expected));
            }
            let most = (kv.max_k - 1) / cache.page;
            if pages == 0 || pages >= columns || pages > most {
                let expected = format_args!(
                    "it must be 1 or more and at most {}: behind the shared pages, a sequence of up to {} \
                     keys (cache.max_k) has at least one page of its own",
                    most.min(columns - 1),
                    kv.max_k
                );
                return Err(Error::invalid("shared_prefixes.pages", pages, expected));
            }
            let rest = index(&REST_LENGTHS, &rest, p.batch as u64, "one per sequence")?;
            [
                none(&GROUPS),
                none(&PREFIX_TABLE),
                none(&PREFIX_LENGTHS),
                none(&REST_TABLE),
                (&REST_LENGTHS, Some(rest)),
            ]
        }
        Groups::Varlen { queries, prefix, rest } => {
            if queries.max_seqlen_q == 0 {
                let expected = "it must be 1 or more";
                return Err(Error::invalid("shared_prefixes.groups.max_seqlen_q", 0, expected));
            }
            let starts =
                index(&GROUPS, &queries.cu_seqlens_q, count as u64 + 1, "one per group and one more")?;
            let names = [(&PREFIX_TABLE, &PREFIX_LENGTHS), (&REST_TABLE, &REST_LENGTHS)];
            let [prefix, rest] = [(0, prefix, count), (1, rest, p.batch)].map(|(i, level, rows)| {
                let (table, lengths) = names[i];
                let needed = table_entries(table.name, &level, cache.page, rows)?;
                let entries = index(table, &level.entries, needed, "one row of page indices each")?;
                let own = index(lengths, &level.lengths, rows as u64, "one per row of the table")?;
                Ok::<_, Error>([(table, Some(entries)), (lengths, Some(own))])
            });
            let ([table, lengths], [rest_table, rest_lengths]) = (prefix?, rest?);
            [(&GROUPS, Some(starts)), table, lengths, rest_table, rest_lengths]
        }
    };
    let [a, b, c, d, e] = read;
    written.iter().try_for_each(|own| disjoint(&[a, b, c, d, e, *own], 5))?;
    Ok(read)
}

fn without_table() -> Error {
    let expected = "only a block table lets sequences share pages; pass a block table, or omit the prefixes";
    Error::invalid("shared_prefixes", "a request without a block table", expected)
}

/// Returns the number of entries that the block table of a level with this number of rows needs.
fn table_entries(name: &'static str, level: &Level, page: usize, rows: usize) -> Result<u64, Error> {
    let entries = cache::table_entries(name, [level.columns, level.stride], rows)?;
    if level.columns.saturating_mul(page) > MAX_SEQLEN {
        let feature = format_args!("{name} with {} columns", level.columns);
        let reason = format_args!("sequences have at most {MAX_SEQLEN} positions");
        return Err(Error::unsupported(feature, reason));
    }
    Ok(entries)
}
