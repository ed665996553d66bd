//! Writes a launch contract into PTX, because rustc has no attributes for it.

use crate::{Contract, Error};

/// The directives of `contract`, which belong between an entry's parameters and its body.
///
/// # Errors
/// Returns [`Error::Threads`] if the number of threads is not 1 to 1024.
pub fn directives(contract: &Contract) -> Result<String, Error> {
    let Contract { symbol, threads, min_blocks_per_sm, .. } = contract;
    if !(1..=1024).contains(threads) {
        return Err(Error::Threads { symbol: (*symbol).to_owned(), threads: *threads });
    }
    let mut text = format!(".reqntid {threads}, 1, 1\n");
    if *min_blocks_per_sm > 0 {
        text.push_str(&format!(".minnctapersm {min_blocks_per_sm}\n"));
    }
    Ok(text)
}

/// Sets the alignment of the entry's parameter in `text` to the alignment in the contract. rustc writes an
/// alignment of at most 16.
///
/// # Errors
/// Returns [`Error::Ptx`] if the entry has no parameter.
pub fn align_parameter(contract: &Contract, text: String) -> Result<String, Error> {
    let Contract { symbol, param_align, .. } = contract;
    if *param_align == 0 {
        return Ok(text);
    }
    let name = format!("{symbol}_param_0[");
    let declared = text.match_indices(".param .align ").find_map(|(start, directive)| {
        let line = text[start..].lines().next()?;
        line.contains(&name).then_some(start + directive.len())
    });
    let Some(start) = declared else {
        let problem = format!("{symbol} has no parameter to align");
        return Err(Error::Ptx { line: 1, problem });
    };
    let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
    Ok(format!("{}{param_align}{}", &text[..start], &text[start + digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_gets_the_contracts_alignment_and_nothing_else_changes() {
        let text = ".visible .entry other(\n\t.param .align 8 .b8 other_param_0[640]\n)\n\
            .visible .entry k(\n\t.param .align 8 .b8 k_param_0[640]\n)\n{ ret; }\n";
        let plain = Contract::new("k", 128);
        assert_eq!(align_parameter(&plain, text.to_owned()).unwrap(), text);
        let aligned = align_parameter(&plain.param_align(64), text.to_owned()).unwrap();
        assert_eq!(aligned, text.replace(".align 8 .b8 k_param_0", ".align 64 .b8 k_param_0"));
        assert!(align_parameter(&Contract::new("n", 128).param_align(64), text.to_owned()).is_err());
    }
}
