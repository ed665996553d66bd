//! Misuse of the typed tiles that must not compile. Each program belongs to a bug class that the types
//! exclude.
//!
//! After a deliberate change, run `TRYBUILD=overwrite cargo test -p ferroflash-misuse` and read the
//! difference.

#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    // With a program that compiles, trybuild builds instead of checking. Only a build evaluates the
    // assertions of generic code.
    cases.pass("tests/compile_fail/correct.rs");
    cases.compile_fail("tests/compile_fail/[0-9]*.rs");
}
