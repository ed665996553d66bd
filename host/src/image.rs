//! The code of a kernel: machine code for exactly this device if this build carries such code (feature
//! `cubins`), otherwise PTX.
use crate::place::Place;
use crate::variant::Compiled;
use crate::{Contract, Driver, Error, ptx};
use compression::lzma;

#[cfg(feature = "cubins")]
include!(concat!(env!("OUT_DIR"), "/cubin_table.rs"));
#[cfg(not(feature = "cubins"))]
static CUBINS: &[(&str, u32, &[u8])] = &[];

/// Loads a kernel.
pub(crate) fn load<D: Driver>(driver: &D, contract: &Contract) -> Result<D::Kernel, Error> {
    match cubin(driver, contract.symbol) {
        Some(packed) => {
            let damaged = |e| {
                let reason = format_args!("the machine code of this build is damaged: {e}");
                Error::unsupported(contract.symbol, reason)
            };
            let cubin = lzma::decompress(packed).map_err(damaged)?;
            // SAFETY: the build embedded ptxas' output unchanged.
            unsafe { driver.load_cubin(&cubin, contract) }
        }
        None => driver.load(&ptx::source(contract.symbol)?, contract),
    }
}

/// Loads a variant's kernel.
pub(crate) fn load_variant<D: Driver>(driver: &D, kernel: &Compiled) -> Result<D::Kernel, Error> {
    let contract = &kernel.info().contract;
    match own_cubin(driver, kernel) {
        // SAFETY: the caller of `VariantKernel::cubins` promises valid machine code.
        Some(cubin) => unsafe { driver.load_cubin(cubin, contract) },
        None => driver.load(kernel.ptx()?, contract),
    }
}

/// Returns the source that [`load`] and [`load_variant`] use: `cubin` or `PTX`.
pub(crate) fn kind<D: Driver>(driver: &D, place: Place) -> &'static str {
    let is_machine_code = match place {
        Place::Table(_) => cubin(driver, place.contract().symbol).is_some(),
        Place::Variant(kernel) => own_cubin(driver, kernel).is_some(),
    };
    if is_machine_code { "cubin" } else { "PTX" }
}

fn own_cubin<D: Driver>(driver: &D, kernel: &Compiled) -> Option<&'static [u8]> {
    kernel.cubin(driver.capabilities().arch()).filter(|_| driver.takes_cubins())
}

fn cubin<D: Driver>(driver: &D, symbol: &str) -> Option<&'static [u8]> {
    // With a replacement, the driver must not load the embedded machine code instead.
    if !driver.takes_cubins() || ptx::replacement(symbol).is_some() {
        return None;
    }
    let arch = driver.capabilities().arch();
    CUBINS.iter().find(|(name, of, _)| (*name, *of) == (symbol, arch)).map(|(_, _, packed)| *packed)
}

#[cfg(all(test, feature = "cubins"))]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_machine_code_for_every_generation() {
        for (symbol, arch, packed) in CUBINS {
            let cubin = lzma::decompress(packed).expect("whole");
            assert!(cubin.starts_with(b"\x7fELF"), "{symbol} sm_{arch}");
        }
        // The test also loads the combine kernels. A package has machine code for two generations of GPUs.
        let kernels: Vec<_> = spec::kernels().filter(|kernel| ptx::is_embedded(kernel.symbol)).collect();
        assert!(!kernels.is_empty(), "no kernel is embedded");
        let generations = |archs: &[u32]| {
            kernels
                .iter()
                .map(|kernel| archs.iter().filter(|arch| kernel.target.runs_on(**arch)).count())
                .sum()
        };
        let meant: [usize; 2] = [generations(&[89, 90]), generations(&[80, 86, 89, 90])];
        assert!(meant.contains(&CUBINS.len()), "{} of {} kernels", CUBINS.len(), kernels.len());
    }
}
