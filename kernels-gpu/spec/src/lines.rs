//! Expands the lines of the table to their dtypes and masks.

/// Expands `$emit!` with one line per dtype and mask.
#[doc(hidden)]
#[macro_export]
macro_rules! lines {
    ($emit:ident $(#[$doc:meta])* $list:ident: $info:ident [F16 Bf16]
        $($word:ident { $($d:ident [$($mask:ident),*] $tile:tt: $config:ty;)+ })+) => {
        $crate::pastey::paste! { $emit! { $(#[$doc])* $list: $info, $($($(
            [<$word _f16_ $d _ $mask:lower _ $tile>] [E = F16, Mask = $mask]: $config;
            [<$word _bf16_ $d _ $mask:lower _ $tile>] [E = Bf16, Mask = $mask]: $config;
        )*)*)* } }
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
