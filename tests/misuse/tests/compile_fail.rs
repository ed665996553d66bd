//! Misuse of the typed tiles that must not compile: each of the bug classes that the types exclude.
//!
//! After a deliberate change: `TRYBUILD=overwrite cargo test -p ferroflash-misuse`, and read the difference.

#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    // A program that passes makes trybuild build instead of check, which evaluates the assertions of generic
    // code.
    cases.pass("tests/compile_fail/correct.rs");
    cases.compile_fail("tests/compile_fail/[0-9]*.rs");
}
