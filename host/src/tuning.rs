//! Measured choices. A choice is the fastest kernel for problems of one size class on a device. The feature
//! `tuning` reads and writes tuning files.
use crate::capabilities::SIMULATED;
use crate::{AttnInfo, Problem};
use spec::Class;
use std::collections::BTreeMap;

/// The measurements of `ferroflash sweep`, by device. The planner prefers these measurements to its selection
/// table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// The measurements by the device's name, then by size class ([`size`]).
    pub devices: BTreeMap<String, BTreeMap<String, Tuned>>,
}

/// The fastest entry for one size of problem.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "tuning", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Tuned {
    /// The entry's name in the table.
    pub entry: String,
    /// The time of a launch in microseconds.
    pub microseconds: f64,
    /// The time of the table's choice in microseconds, if it was measured.
    pub table_microseconds: Option<f64>,
}

impl Tuned {
    /// Creates a measurement: `entry` took `microseconds`; the table's own choice took `table_microseconds`.
    pub const fn new(entry: String, microseconds: f64, table_microseconds: Option<f64>) -> Self {
        Tuned { entry, microseconds, table_microseconds }
    }

    fn is_known(&self) -> bool {
        let dense = |e: &AttnInfo| e.class() == Class::Dense && e.is_plain();
        spec::attention().any(|e| dense(e) && e.contract.symbol == self.entry)
    }
}

/// The environment variable that names the file for `Tuning::from_environment`.
pub const TUNING_VARIABLE: &str = "FERROFLASH_TUNING";

/// Returns the size class of a problem. The class consists of the dtype, the head dim, the mask, and three
/// numbers rounded up to powers of two: the heads of all batches, the queries, and the keys. A measurement
/// holds for its whole size class.
pub fn size(p: &Problem) -> String {
    // An invalid problem also has a size class, so the rounding must not overflow.
    let up = |n: usize| n.checked_next_power_of_two().unwrap_or(usize::MAX);
    let (dtype, mask) = (p.dtype.name(), p.mask_kind().name());
    let (heads, queries, keys) = (up(p.batch.saturating_mul(p.heads_q)), up(p.seqlen_q), up(p.seqlen_k));
    let values = if p.head_dim == p.head_dim_v { String::new() } else { format!("/{}", p.head_dim_v) };
    format!("{dtype} d{}{values} {mask} heads {heads} queries {queries} keys {keys}", p.head_dim)
}

impl Tuning {
    /// Creates an empty set of measurements: the planner's selection table decides.
    pub const fn new() -> Self {
        Tuning { devices: BTreeMap::new() }
    }

    /// Returns the fastest kernel for problems of this size class, if this build has the kernel. A simulated
    /// card has the measurements of the real card.
    pub(crate) fn best(&self, device: &str, p: &Problem) -> Option<&str> {
        // If the device has no measurements, this line returns before anything is formatted.
        let device = device.strip_suffix(SIMULATED).unwrap_or(device);
        let best = self.devices.get(device)?.get(&size(p))?;
        best.is_known().then_some(&best.entry)
    }

    /// Returns the measured kernels that this build lacks. The selection table decides for their sizes, until
    /// `ferroflash sweep` measures them again.
    pub fn outdated(&self) -> impl Iterator<Item = &str> {
        let tuned = self.devices.values().flat_map(BTreeMap::values);
        tuned.filter(|tuned| !tuned.is_known()).map(|tuned| tuned.entry.as_str())
    }

    /// Stores `tuned` for problems like `p` on `device`.
    pub fn keep(&mut self, device: &str, p: &Problem, tuned: Tuned) {
        self.devices.entry(device.into()).or_default().insert(size(p), tuned);
    }
}

#[cfg(feature = "tuning")]
mod file {
    use super::{TUNING_VARIABLE, Tuned, Tuning};
    use crate::Error;
    use std::borrow::Cow;
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    /// The version in files of this build. A new field does not change the version.
    const VERSION: u32 = 1;

    /// A tuning file.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct File<'a> {
        /// Files of older builds have no version.
        #[serde(default)]
        version: u32,
        devices: Cow<'a, BTreeMap<String, BTreeMap<String, Tuned>>>,
    }

    impl Tuning {
        /// Returns the default file: `ferroflash/tuning.json` in the user's cache folder, unless
        /// `FERROFLASH_TUNING` names another file. Returns `None` without such a folder.
        pub fn default_path() -> Option<PathBuf> {
            let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            let cache = folder("XDG_CACHE_HOME").or_else(|| folder("LOCALAPPDATA"));
            let cache = cache.or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
            Some(cache.join("ferroflash/tuning.json"))
        }

        /// Reads the file that `FERROFLASH_TUNING` names. If this environment variable is unset or empty,
        /// reads the default file, if that file exists.
        ///
        /// # Errors
        /// Returns [`Error::Invalid`] if the file cannot be read, or does not exist although the environment
        /// variable names it.
        pub fn from_environment() -> Result<Self, Error> {
            match std::env::var_os(TUNING_VARIABLE).filter(|path| !path.is_empty()) {
                Some(path) => Self::read(Path::new(&path)),
                None => match Self::default_path().filter(|path| path.exists()) {
                    Some(path) => Self::read(&path),
                    None => Ok(Self::new()),
                },
            }
        }

        /// Reads a file that [`Tuning::write`] wrote.
        ///
        /// # Errors
        /// Returns [`Error::Invalid`] if the file cannot be read or is no tuning file.
        pub fn read(path: &Path) -> Result<Self, Error> {
            let wrong = |e: &dyn std::fmt::Display| {
                let expected = format_args!("it must be a file that `ferroflash sweep` wrote: {e}");
                Error::invalid("tuning", path.display(), expected)
            };
            let text = std::fs::read_to_string(path).map_err(|e| wrong(&e))?;
            let File { version, devices } = serde_json::from_str(&text).map_err(|e| wrong(&e))?;
            if version > VERSION {
                let newer = format!("its version is {version}, of a newer build; this one reads {VERSION}");
                return Err(wrong(&newer));
            }
            Ok(Tuning { devices: devices.into_owned() })
        }

        /// Writes the file as JSON, atomically.
        ///
        /// # Errors
        /// Returns [`Error::Invalid`] if the file cannot be written.
        pub fn write(&self, path: &Path) -> Result<(), Error> {
            let write = || {
                std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
                let part = path.with_extension("part");
                let file = File { version: VERSION, devices: Cow::Borrowed(&self.devices) };
                std::fs::write(&part, serde_json::to_string_pretty(&file)?)?;
                std::fs::rename(&part, path)
            };
            write().map_err(|e| {
                Error::invalid("tuning", path.display(), format_args!("it cannot be written: {e}"))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{plan, plan_with};
    use crate::request::{AttentionRequest, Mask, TensorView};
    use crate::{Capabilities, DType};

    fn forward(seqlen: usize, config: Option<&str>) -> AttentionRequest<'_> {
        let view = |n: u64| TensorView::bhsd(n << 40, 1 << 38, DType::F16, [2, seqlen, 8, 64]);
        let f = AttentionRequest::dense(view(1), view(2), view(3), view(4));
        AttentionRequest { config, ..f.mask(Mask::Causal) }
    }

    fn tuned(entry: &str) -> Tuning {
        let mut tuning = Tuning::new();
        let problem = forward(512, None).problem();
        let best = Tuned { entry: entry.into(), microseconds: 9.5, table_microseconds: Some(10.0) };
        tuning.keep("NVIDIA L4", &problem, best);
        tuning
    }

    #[test]
    fn measured_choices_come_before_the_table() {
        let [l4, h200] = ["l4", "h200"].map(|name| Capabilities::profile(name).expect("known"));
        let tuning = tuned("fwd_f16_d64_causal_128x64");
        let on = |seqlen, config, card| {
            plan_with(&forward(seqlen, config), card, &tuning).expect("valid").contract().symbol
        };
        let table = |seqlen, card| plan(&forward(seqlen, None), card).expect("valid").contract().symbol;
        assert_ne!(table(512, l4), "fwd_f16_d64_causal_128x64");
        assert_eq!(on(512, None, l4), "fwd_f16_d64_causal_128x64");
        assert_eq!(on(300, None, l4), on(512, None, l4), "the same size");
        let simulated = Capabilities { name: "NVIDIA L4 (simulated)".into(), ..l4.clone() };
        assert_eq!(on(512, None, &simulated), on(512, None, l4), "the simulator stands for the card");
        assert_eq!(on(513, None, l4), table(513, l4), "another size");
        assert_eq!(on(512, None, h200), table(512, h200), "another card");
        assert_eq!(
            on(512, Some("fwd_f16_d64_causal_64x64_s3"), l4),
            "fwd_f16_d64_causal_64x64_s3",
            "a name comes first"
        );
    }

    #[test]
    fn a_choice_that_is_gone_leaves_the_table_and_one_that_is_wrong_is_an_error() {
        let l4 = Capabilities::profile("l4").expect("known");
        let gone = tuned("fwd_gone");
        let planned = plan_with(&forward(512, None), l4, &gone).expect("the table's own");
        assert_eq!(planned.contract(), plan(&forward(512, None), l4).expect("valid").contract());
        assert_eq!(gone.outdated().collect::<Vec<_>>(), ["fwd_gone"]);
        let wrong = "fwd_bf16_d64_causal_128x64";
        assert_eq!(tuned(wrong).outdated().count(), 0);
        let error = plan_with(&forward(512, None), l4, &tuned(wrong)).expect_err(wrong).to_string();
        assert!(error.contains(wrong) && error.contains("`ferroflash sweep`"), "{error}");
    }

    #[test]
    fn what_planning_refuses_has_a_size() {
        for absurd in [usize::MAX, 1 << 31, (1 << 63) + 1] {
            assert!(size(&Problem::new(DType::F16, absurd, absurd, absurd, absurd)).starts_with("f16 d"));
        }
    }

    #[test]
    #[cfg(feature = "tuning")]
    fn files_keep_what_was_measured() {
        let path = std::env::temp_dir().join(format!("ferroflash-tuning-{}.json", std::process::id()));
        tuned("fwd_f16_d64_causal_128x64").write(&path).expect("written");
        assert_eq!(Tuning::read(&path), Ok(tuned("fwd_f16_d64_causal_128x64")));
        let fields = r#""entry": "e", "microseconds": 1.0, "table_microseconds": null, "new": 3"#;
        let file =
            |version: &str| format!(r#"{{{version} "new": 1, "devices": {{"d": {{"s": {{{fields}}}}}}}}}"#);
        for (version, read) in [("", Ok(())), (r#""version": 1,"#, Ok(())), (r#""version": 9,"#, Err(()))] {
            std::fs::write(&path, file(version)).expect("written");
            let tuning = Tuning::read(&path);
            assert_eq!(tuning.as_ref().map(drop).map_err(drop), read, "{tuning:?}");
        }
        std::fs::write(&path, "{\"devices\": 3}").expect("written");
        assert!(Tuning::read(&path).expect_err("no tuning").to_string().contains("`ferroflash sweep` wrote"));
        std::fs::remove_file(&path).expect("removed");
        assert!(Tuning::read(&path).is_err());
    }
}
