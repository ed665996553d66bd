//! Expands the lines of the table to their dtypes and masks, and makes lists of them.

/// Expands `$emit!` with one line per dtype and mask. The families behind `[Bf16]` have only this dtype.
///
/// The numbers of a configuration have the order below; the documentation of its type explains each. Tiles
/// have 16 queries, keys or columns. `M` counts a block's tiles of queries, and `W` those of a warp. In
/// Hopper's configurations, `W` counts warpgroups of 64 queries. `N` counts a stage's tiles of keys, `D`
/// tiles of columns of Q and K, and `DV` those of V.
///
/// | configuration | numbers |
/// |---|---|
/// | `Fwd` | `M`, `W`, `KV_WARPS`, `N`, `D`, `Q_STEPS`, `STAGES`, `DV` (default `D`) |
/// | `FwdOverlap` | `M`, `W`, `N`, `D`, `Q_STEPS` |
/// | `FwdWide` | `M`, `W`, `N`, `D`, `HALF`, `Q_STEPS` |
/// | `FwdDequant` | `M`, `W`, `N`, `D`, `Q_STEPS` |
/// | `FwdInt8F16` | `M`, `W`, `N`, `D`, `HELD` |
/// | `FwdInt8Fp8` | `M`, `W`, `N`, `D`, `HELD`, `KEPT` (default 0) |
/// | `Statistics` | `M`, `W`, `N`, `D`, `Q_STEPS`, `STAGES` |
/// | `FwdHopper` | `W`, `N`, `D`, `STAGES`, `ORDERED`, `OF` (default `D`) |
/// | `FwdHopperDequant` | `W`, `N`, `D`, `STAGES`, `ORDERED` |
/// | `FwdHopperWide` | `W`, `N`, `D`, `STAGES`, `ORDERED`, `DV` (default `D`) |
/// | `FwdHopperHalves` | `W`, `N`, `D`, `STAGES`, `ORDERED`, `H` |
/// | `FwdHopperFp8` | `W`, `N`, `D`, `STAGES` |
/// | `Decode` | `G`, `D`, `WARPS`, `SLOTS` |
/// | `Mla` | `G`, `OWN`, `KEYS`, `D`, `DV`, `SHARE`, `WARPS`, `STAGES`, `HELD` |
/// | `MlaDequant` | `G`, `OWN`, `KEYS`, `D`, `DS`, `DV`, `SHARE`, `WARPS`, `HELD` |
#[doc(hidden)]
#[macro_export]
macro_rules! lines {
    ($emit:ident $(#[$doc:meta])* $list:ident: $info:ident [F16 Bf16]
        $($word:ident { $($d:ident [$($mask:ident),*] $tile:tt: $config:ty;)+ })+
        $([Bf16] $($only:ident { $($d2:ident [$($mask2:ident),*] $tile2:tt: $config2:ty;)+ })+)?) => {
        $crate::pastey::paste! { $emit! { $(#[$doc])* $list: $info, $($($(
            [<$word _f16_ $d _ $mask:lower _ $tile>] [E = F16, Mask = $mask]: $config;
            [<$word _bf16_ $d _ $mask:lower _ $tile>] [E = Bf16, Mask = $mask]: $config;
        )*)*)* $($($($(
            [<$only _bf16_ $d2 _ $mask2:lower _ $tile2>] [E = Bf16, Mask = $mask2]: $config2;
        )*)*)*)? } }
    };
    ($emit:ident $(#[$doc:meta])* $list:ident: $info:ident [F16]
        $($word:ident { $($d:ident [$($mask:ident),*] $tile:tt: $config:ty;)+ })+) => {
        $crate::pastey::paste! { $emit! { $(#[$doc])* $list: $info, $($($(
            [<$word _f16_ $d _ $mask:lower _ $tile>] [E = F16, Mask = $mask]: $config;
        )*)*)* } }
    };
    ($emit:ident $(#[$doc:meta])* $list:ident: $info:ident [F16 Bf16]
        $($word:ident { $($d:ident: $config:ty;)+ })+) => {
        $crate::pastey::paste! { $emit! { $(#[$doc])* $list: $info, $($(
            [<$word _f16_ $d>] [E = F16]: $config;
            [<$word _bf16_ $d>] [E = Bf16]: $config;
        )*)* } }
    };
    ($emit:ident $(#[$doc:meta])* $list:ident: $info:ident $($symbol:ident: $config:ty;)*) => {
        $emit! { $(#[$doc])* $list: $info, $($symbol []: $config;)* }
    };
}

/// Makes a list of table lines. Each line becomes an [`Entry`].
macro_rules! list {
    ($(#[$doc:meta])* $list:ident: $info:ident,
        $($symbol:ident [$($name:ident = $type:ident),*]: $config:ty;)*) => {
        $(const _: () = {
            $(type $name = $type;)*
            impl Entry for $config {
                const CONTRACT: Contract = Contract::of::<$config>(stringify!($symbol));
            }
        };)*
        $(#[$doc])*
        #[allow(clippy::needless_update, reason = "some kinds of kernels have nothing but a contract")]
        pub const $list: &[$info] = &[$({
            $(type $name = $type;)*
            $info { contract: <$config as Entry>::CONTRACT, ..<$config as Line>::INFO }
        }),*];
    };
}
pub(crate) use list;
