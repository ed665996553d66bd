//! Compares `wgmma`, with every order of its operands, with a plain product.

use common::hopper::{e4m3, f16, number};
use ptx_sim::{Gpu, Kind, Launch, MmaArch, MmaMode, Module, Options, Outcome, Profile};

/// Number of bytes of shared memory that the kernel fills from its input: A, then B.
const IMAGE: usize = 40 << 10;
const B: usize = 8 << 10;

#[derive(Clone, Copy, Debug)]
struct Case {
    columns: usize,
    /// Number of bytes of the swizzle of both operands, or 16 for no swizzle.
    span: usize,
    /// Whether neighbouring elements of A and of B have the same depth (MN-major).
    across: [bool; 2],
    in_registers: bool,
    element: &'static str,
    negated: bool,
    /// The element of a matrix (0 is A) at a row and a depth.
    number: fn(usize, usize, usize) -> f32,
}

const CASE: Case = Case {
    columns: 64,
    span: 128,
    across: [false; 2],
    in_registers: false,
    element: "f16",
    negated: false,
    number,
};

/// The bytes of an element.
fn bytes(case: &Case, x: f32) -> Vec<u8> {
    match case.element {
        "e4m3" => vec![e4m3(x)],
        "bf16" => half::bf16::from_f32(x).to_le_bytes().into(),
        _ => f16(x).to_le_bytes().into(),
    }
}

/// Number of bytes of an element. A product has 32 bytes of each row.
fn size(case: &Case) -> usize {
    bytes(case, 0.0).len()
}

/// The offset of element (row, k), as in PTX's figures. With a swizzle, rows have `span` bytes, and the row
/// number permutes their chunks. Without a swizzle, blocks have eight rows of 16 bytes.
fn offset(case: &Case, across: bool, extent: usize, row: usize, k: usize) -> usize {
    let (span, size) = (case.span, size(case));
    let (line, column, lines) = if across { (k, row, 16) } else { (row, k, extent) };
    if span == 16 {
        // The blocks of eight lines follow each other. After the blocks of all lines, the blocks of the next
        // columns follow.
        let blocks = lines / 8;
        let chunk = 16 / size;
        return (column / chunk * blocks + line / 8) * 128 + line % 8 * 16 + column % chunk * size;
    }
    let per_row = span / size;
    let (panel, column) = (column / per_row, column % per_row);
    let at = panel * lines * span + line * span + column * size;
    let exchange = match span {
        128 => line % 8,
        64 => line / 2 % 4,
        _ => line / 4 % 2,
    };
    at ^ (exchange << 4)
}

/// The descriptor of an operand at `start`.
fn descriptor(case: &Case, across: bool, extent: usize, start: usize) -> u64 {
    let lines = if across { 16 } else { extent };
    let (leading, stride) = match (case.span, across) {
        // Each pair has the stride between blocks along k, and the stride between blocks along the rows.
        (16, false) => (lines / 8 * 128, 128),
        (16, true) => (128, lines / 8 * 128),
        (span, false) => (1, 8 * span),
        (span, true) => (lines * span, 8 * span),
    };
    let swizzle = [(16, 0), (128, 1u64), (64, 2), (32, 3)].iter().find(|it| it.0 == case.span).unwrap().1;
    let sixteenths = |bytes: usize| bytes as u64 / 16;
    swizzle << 62 | sixteenths(stride) << 32 | sixteenths(leading) << 16 | sixteenths(start + 1024)
}

/// The accumulators after the kernel, to which `change` was applied, and their expected values.
fn run(case: &Case, mma: MmaMode, change: impl Fn(&str) -> String) -> (Outcome, Vec<f32>, Vec<f32>) {
    let Case { columns, across, number, .. } = *case;
    let depth = 32 / size(case);
    let mut image = vec![0u8; IMAGE];
    for k in 0..depth {
        for (matrix, extent, start) in [(0, 64, 0), (1, columns, B)] {
            for row in 0..extent {
                let at = start + offset(case, across[matrix], extent, row, k);
                let element = bytes(case, number(matrix, row, k));
                image[at..at + element.len()].copy_from_slice(&element);
            }
        }
    }
    let registers = columns / 2;
    let list: Vec<_> = (0..registers).map(|i| format!("d{i}")).collect();
    let element = case.element;
    let b = descriptor(case, across[1], columns, B);
    let (a, orders) = match case.in_registers {
        true => ("{a0, a1, a2, a3}".to_string(), format!("{}", u8::from(across[1]))),
        false => (
            format!("{}", descriptor(case, across[0], 64, 0)),
            format!("{}, {}", u8::from(across[0]), u8::from(across[1])),
        ),
    };
    let orders = if element == "e4m3" { String::new() } else { format!(", {orders}") };
    // A's registers hold row 16 w + l / 4 (and the row 8 further), at byte 4 (l % 4) (and 16 more).
    let load_a = (0..4).map(|r| {
        let at = 8 * (r % 2) * 32 + 8 * (r / 2) * 2;
        format!("ld.global.b32 a{r}, [A+{at}];\n")
    });
    let text = format!(
        ".version 8.3\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 tile[];
        .visible .entry k(.param .u64 in, .param .u64 out) {{
        .reg .b32 t, l, w, s, x, i, v, a<4>, d<128>; .reg .b64 I, O, A, o; .reg .pred p, no;
        ld.param.u64 I, [in]; ld.param.u64 O, [out]; mov.u32 t, %tid.x; mov.u32 s, tile; mov.u32 i, t;
        FILL: shl.b32 x, i, 2; cvt.u64.u32 o, x; add.u64 o, o, I; ld.global.b32 v, [o]; add.u32 x, x, s;
        st.shared.b32 [x], v; add.u32 i, i, 128; setp.lt.u32 p, i, {words}; @p bra FILL;
        fence.proxy.async; bar.sync 0;
        and.b32 l, t, 31; shr.u32 w, t, 5; shl.b32 x, w, 9; shr.u32 v, l, 2; shl.b32 v, v, 5; add.u32 x, x, v;
        and.b32 v, l, 3; shl.b32 v, v, 2; add.u32 x, x, v;
        cvt.u64.u32 A, x; add.u64 A, A, I; add.u64 A, A, {IMAGE};
        {load_a}
        setp.ne.u32 no, t, t; {one}
        wgmma.fence.sync.aligned;
        {product}, no, 1, 1{orders};
        {product}, 1, 1, {sign}{orders};
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
        mul.wide.u32 o, t, {row}; add.u64 O, O, o;
        {store} ret; }}",
        words = IMAGE / 4,
        load_a = load_a.collect::<String>(),
        one = list.iter().map(|d| format!("mov.u32 {d}, 0x7fc00000; ")).collect::<String>(),
        product = format!(
            "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{element}.{element} {{{}}}, {a}, {b}",
            list.join(", ")
        ),
        sign = if case.negated { -1 } else { 1 },
        row = 4 * registers,
        store = (0..registers).map(|i| format!("st.global.b32 [O+{}], d{i}; ", 4 * i)).collect::<String>(),
    );
    let module = Module::parse(&change(&text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), Options { mma, ..Options::default() });
    for row in 0..64 {
        for k in 0..depth {
            image.extend(bytes(case, number(0, row, k)));
        }
    }
    let from = gpu.alloc("in", image.len(), 256).unwrap();
    gpu.write(from, &image).unwrap();
    let to = gpu.alloc("out", 64 * columns * 4, 256).unwrap();
    let params = [from, to].map(u64::to_le_bytes).concat();
    let launch = Launch { dynamic_smem: IMAGE as u32, ..Launch::new([1; 3], [128, 1, 1], &params) };
    let outcome = gpu.launch(&module, "k", &launch).unwrap();
    let mut bytes = vec![0; 64 * columns * 4];
    gpu.read(to, &mut bytes).unwrap();
    let raw: Vec<_> = bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
    // Thread t holds row 16 (t / 32) + l / 4 and the row 8 further, and two of every eight columns.
    let mut found = vec![0.0; 64 * columns];
    for (i, &x) in raw.iter().enumerate() {
        let (t, r) = (i / registers, i % registers);
        let row = t / 32 * 16 + t % 32 / 4 + r / 2 % 2 * 8;
        found[row * columns + r / 4 * 8 + t % 4 * 2 + r % 2] = x;
    }
    let product = |row: usize, column: usize| -> f32 {
        (0..depth).map(|k| number(0, row, k) * number(1, column, k)).sum()
    };
    let times = if case.negated { 0.0 } else { 2.0 };
    let expected = (0..64 * columns).map(|i| times * product(i / columns, i % columns)).collect();
    (outcome, found, expected)
}

fn check(case: Case, mma: MmaMode) {
    let (outcome, found, expected) = run(&case, mma, str::to_owned);
    assert!(outcome.reports.is_empty(), "{case:?}: {}", outcome.reports[0]);
    assert_eq!(found, expected, "{case:?}");
}

#[test]
fn every_order_of_the_operands() {
    for span in [16, 32, 64, 128] {
        for across in [[false, false], [false, true], [true, false], [true, true]] {
            check(Case { span, across, ..CASE }, MmaMode::Fast);
        }
    }
}

#[test]
fn a_in_registers() {
    for across in [false, true] {
        check(Case { across: [false, across], in_registers: true, ..CASE }, MmaMode::Fast);
        check(Case { across: [false, across], in_registers: true, element: "bf16", ..CASE }, MmaMode::Fast);
    }
}

#[test]
fn every_width() {
    for columns in (8..=256).step_by(8) {
        check(Case { columns, ..CASE }, MmaMode::Fast);
    }
    for columns in [64, 128, 192, 256] {
        check(Case { columns, across: [false, true], ..CASE }, MmaMode::Fast);
    }
}

#[test]
fn signs_and_arithmetics() {
    check(Case { negated: true, ..CASE }, MmaMode::Fast);
    for mma in [MmaMode::F64, MmaMode::Exact(MmaArch::Hopper)] {
        check(CASE, mma);
        check(Case { element: "bf16", ..CASE }, mma);
    }
}

#[test]
fn products_of_e4m3() {
    let case = Case { element: "e4m3", ..CASE };
    for span in [16, 32, 64, 128] {
        check(Case { span, ..case }, MmaMode::Fast);
    }
    for columns in [8, 136, 256] {
        check(Case { columns, ..case }, MmaMode::Fast);
    }
    for mma in [MmaMode::Fast, MmaMode::F64, MmaMode::Exact(MmaArch::Hopper)] {
        check(Case { in_registers: true, ..case }, mma);
        check(Case { negated: true, ..case }, mma);
    }
}

/// All numbers of e4m3, zeros and subnormal numbers among them.
fn any_e4m3(matrix: usize, row: usize, k: usize) -> f32 {
    let bits = (row * 2_654_435_761 + k * 40_503 + matrix * 977) >> 5;
    let (exponent, eighths) = ((bits >> 3 & 15) as i32, (bits & 7) as f32);
    let magnitude = match exponent {
        0 => eighths / 512.0,
        15 => 8.0,
        _ => (1.0 + eighths / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits >> 7 & 1 == 0 { magnitude } else { -magnitude }
}

/// One step of Hopper on e4m3: terms are cut to 13 bits below the largest exponent, and so is the sum.
fn with_13_bits(terms: &[[f32; 2]], c: f32) -> f32 {
    let exponent = |x: f32| (x.to_bits() >> 23 & 255) as i32 - 127;
    let of_products = terms.iter().filter(|[a, b]| a * b != 0.0).map(|[a, b]| exponent(*a) + exponent(*b));
    let top = of_products.chain((c != 0.0).then(|| exponent(c))).max().expect("a term that is not 0");
    let unit = 2f64.powi(top - 13);
    let terms = terms.iter().map(|[a, b]| f64::from(a * b)).chain([f64::from(c)]);
    let sum = terms.map(|term| (term / unit).trunc() * unit).sum::<f64>() as f32;
    f32::from_bits(sum.to_bits() & !0x3ff)
}

#[test]
fn sums_of_e4m3_are_cut_as_on_hopper() {
    let exact = MmaMode::Exact(MmaArch::Hopper);
    let case = Case { element: "e4m3", number: any_e4m3, ..CASE };
    for negated in [false, true] {
        let (outcome, found, rounded) = run(&Case { negated, ..case }, exact, str::to_owned);
        assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
        let mut cut = 0;
        for (i, found) in found.into_iter().enumerate() {
            let sign = if negated { -1.0 } else { 1.0 };
            let terms = |sign: f32| -> Vec<_> {
                let (row, column) = (i / case.columns, i % case.columns);
                (0..32).map(|k| [sign * any_e4m3(0, row, k), any_e4m3(1, column, k)]).collect()
            };
            let expected = with_13_bits(&terms(sign), with_13_bits(&terms(1.0), 0.0));
            assert_eq!(found.to_bits(), expected.to_bits(), "{i}: {found} is not {expected}");
            cut += usize::from(found != rounded[i]);
        }
        assert!(cut > 1000, "{cut} sums were cut");
    }
}

/// A sum that begins with 0 and has only products that are 0 is 0, whatever their signs are.
#[test]
fn sums_of_zeros_of_e4m3_are_zero() {
    let number = |matrix: usize, row: usize, k: usize| match (matrix, row % 2, k % 2) {
        (0, 0, 0) => 0.0,
        (0, 0, _) => -0.0,
        _ => any_e4m3(matrix, row, k),
    };
    let case = Case { element: "e4m3", number, ..CASE };
    let (outcome, found, _) = run(&case, MmaMode::Exact(MmaArch::Hopper), str::to_owned);
    assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
    for (row, found) in found.chunks(case.columns).enumerate() {
        assert!(found.iter().all(|x| (x.to_bits() == 0) == (row % 2 == 0)), "row {row}: {found:?}");
    }
}

/// The accumulator of e4m3 has 13 bits of fraction. Sums of 512 products are whole. Of 16,384 products, the
/// largest sum loses a fifth and more.
#[test]
fn long_sums_of_e4m3_are_too_small() {
    let case = Case { element: "e4m3", columns: 8, ..CASE };
    let largest = |steps: u32| {
        let (outcome, found, expected) = run(&case, MmaMode::Exact(MmaArch::Hopper), |text| {
            let (before, product) = text.split_once(", no, 1, 1;").expect("the first product");
            let (product, after) = product.split_once("1, 1, 1;").expect("the second product");
            let again = format!("add.u32 i, i, 1; setp.lt.u32 p, i, {steps}; @p bra AGAIN;");
            format!("{before}, no, 1, 1; mov.u32 i, 1; AGAIN: {product}1, 1, 1; {again} {after}")
        });
        assert!(outcome.reports.is_empty(), "{steps} steps: {}", outcome.reports[0]);
        let sums = found.into_iter().zip(expected.iter().map(|x| x / 2.0 * steps as f32));
        sums.max_by(|a, b| a.1.total_cmp(&b.1)).expect("a sum")
    };
    let (found, expected) = largest(16);
    assert_eq!(found, expected, "512 products");
    let (found, expected) = largest(512);
    assert!(found < 0.8 * expected, "16,384 products: {found} of {expected}");
}

/// The registers of A must be written before a fence, and must not change while a product reads them.
#[test]
fn a_in_registers_is_checked() {
    let case = Case { in_registers: true, ..CASE };
    let finds = |kind: Kind, from: &str, to: &str| {
        let (outcome, ..) = run(&case, MmaMode::Fast, |text| {
            assert!(text.contains(from), "{text}");
            text.replacen(from, to, 1)
        });
        assert!(outcome.reports.iter().any(|report| report.kind == kind), "{from}: {:?}", outcome.reports);
    };
    finds(Kind::UninitialisedRegister, "ld.global.b32 a1,", "ld.global.b32 v,");
    finds(Kind::Wgmma, "wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned; mov.b32 a2, l;");
    finds(Kind::Wgmma, "wgmma.fence.sync.aligned;", "");
    let commit = "wgmma.commit_group.sync.aligned;";
    finds(Kind::PendingProduct, commit, &format!("{commit} mov.b32 a3, l;"));
    finds(Kind::PendingProduct, commit, &format!("{commit} mov.b32 l, a0;"));
    // A register of A must not be an accumulator of the same product.
    finds(Kind::PendingProduct, "{a0, a1, a2, a3}, 46", "{d0, a1, a2, a3}, 46");
}
