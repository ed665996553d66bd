//! Valid and invalid shapes.
use super::*;
use ferroflash::Attention;
use ferroflash::driver::SimDriver;
use ferroflash::plan::AnyRequest;
use ferroflash::request::{AttentionRequest, KeysValues};
use reference::{Binder, LaunchOptions, OnDevice, Rule, carries_all, lacks_kernel};

/// Returns the workload of a file's only shape.
fn one(shape: &str) -> Result<Workload, String> {
    let suites = parse(&format!("{{\"mine\": [{shape}]}}"))?;
    let shape = suites.into_values().flatten().next().ok_or("no shape")?;
    shape.workload().map_err(|e| e.to_string())
}

fn card(profile: &str) -> Attention<SimDriver> {
    Attention::new(SimDriver::new(profile).expect("a known card"))
}

#[test]
fn the_built_in_suites_are_solved_by_an_h200_and_an_l4() {
    let suites = read(None, &[]).expect("valid");
    let names = suites.keys().map(String::as_str).collect::<Vec<_>>().join(" ");
    assert_eq!(
        names,
        "append backward chunked decode extra headline hopper hopper-extra latents merge mixed mla packed \
         paged prefill prefix ragged sparse"
    );
    let forward = read_forward(None, &[]).expect("valid");
    assert_eq!(
        forward.keys().cloned().collect::<Vec<_>>().join(" "),
        "extra headline hopper hopper-extra prefill"
    );

    let cards: Vec<_> = ["h200", "l4"].into_iter().map(card).collect();
    for (shape, card) in forward.values().flatten().flat_map(|shape| cards.iter().map(move |c| (shape, c))) {
        let problem = shape.problem().expect("valid");
        ferroflash::plan::supports(&problem, card.capabilities())
            .unwrap_or_else(|e| panic!("{problem}: {e}"));
    }
    for (suite, workload) in all(&suites).filter(|(suite, _)| !forward.contains_key(*suite)) {
        let work = workload.work();
        let asked = work.request(&mut Binder::at(None, None), LaunchOptions::default());
        for card in &cards {
            card.plan(&asked).unwrap_or_else(|e| panic!("{suite}: {}: {e}", workload.label));
        }
        if let AnyRequest::Attention(AttentionRequest { kv: KeysValues::Cache(cache), .. }) = asked {
            let keys = cache.pages.keys;
            let bytes = 2 * keys.elements as usize * keys.dtype.bytes();
            assert!(bytes < 8 << 30, "{suite}: {}: {bytes} bytes", workload.label);
        }
    }
    // Reports identify rows by these labels.
    let mut labels: Vec<_> = all(&suites).map(|(suite, workload)| (suite, &workload.label)).collect();
    labels.sort_unstable();
    let same = labels.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(same, None);
}

fn all(suites: &Suites<Workload>) -> impl Iterator<Item = (&String, &Workload)> {
    suites.iter().flat_map(|(suite, workloads)| workloads.iter().map(move |workload| (suite, workload)))
}

#[test]
fn what_is_measured_is_right() {
    let shapes = [
        r#"{"batch": 1, "heads_q": 2, "heads_k": 1, "seqlen_q": 40, "seqlen_k": 40, "head_dim": 64}"#,
        r#"{"batch": 1, "heads_q": 2, "heads_k": 2, "seqlen_q": 40, "seqlen_k": 40, "head_dim": 64,
            "packed": true}"#,
        r#"{"sequences": [[2, 1, 50], [1, 1, 7]], "heads_q": 4, "heads_k": 2, "head_dim": 64, "page": 0}"#,
        r#"{"sequences": [[2, 1, 50], [1, 1, 0]], "heads_q": 4, "heads_k": 2, "head_dim": 64, "page": 0,
            "layout": "HND", "sinks": true}"#,
        r#"{"sequences": {"count": 3, "seqlen_k": [1, 60], "drawn": "log_uniform", "seed": 1}, "heads_q": 4,
            "heads_k": 2, "head_dim": 64, "page": 16, "dtype": "bf16", "softcap": 20.0}"#,
        r#"{"sequences": [[2, 1, 50]], "heads_q": 4, "heads_k": 2, "head_dim": 64, "page": 1,
            "layout": "HND"}"#,
        r#"{"sequences": [[2, 1, 50]], "heads_q": 4, "heads_k": 2, "head_dim": 64, "page": 16,
            "kv_dtype": "e4m3", "window": [20, 0]}"#,
        r#"{"sequences": [[2, 1, 50], [1, 30, 40]], "heads_q": 2, "heads_k": 1, "head_dim": 64, "page": 16,
            "causal": true}"#,
        r#"{"sequences": [[2, 1, 50], [1, 30, 40], [1, 3, 0]], "heads_q": 2, "heads_k": 1, "head_dim": 64,
            "causal": true}"#,
        r#"{"append": 20, "heads_k": 2, "head_dim": 64, "page": 16, "layout": "HND"}"#,
        r#"{"append": 5, "heads_k": 1, "head_dim": 64, "kv_dtype": "e4m3"}"#,
        r#"{"append": 5, "heads_q": 4, "heads_k": 2, "head_dim": 64}"#,
        r#"{"merge": 9, "states": 3, "heads_q": 2, "head_dim": 64}"#,
        r#"{"backward": {"batch": 1, "heads_q": 2, "heads_k": 1, "seqlen_q": 40, "seqlen_k": 50,
            "head_dim": 64, "causal": true}}"#,
    ];
    let mut ran = 0;
    for shape in shapes {
        let workload = one(shape).unwrap_or_else(|e| panic!("{shape}: {e}"));
        let (work, attention) = (workload.work(), card("l4"));
        let ran_all = OnDevice::new(&attention, &*work, None)
            .and_then(|mut device| device.run_all().map(|written| (device, written)));
        let (device, written) = match ran_all {
            Err(error) if lacks_kernel(&error) => continue,
            ran_all => ran_all.unwrap_or_else(|e| panic!("{shape}: {e}")),
        };
        ran += 1;
        let judge = work.judge(Rule::Few).expect("valid");
        for (round, written) in written.iter().enumerate() {
            let judgement = judge(round, written);
            assert!(judgement.failures.is_empty(), "{shape}: {:?}", judgement.failures);
        }
        // The launches run as in a measurement, several times.
        let ready = device.ready().unwrap_or_else(|e| panic!("{shape}: {e}"));
        (0..2).try_for_each(|_| ready.launch()).unwrap_or_else(|e| panic!("{shape}: {e}"));
        assert_eq!(ready.kernel().symbol, written[0].entry);
    }
    // A build that carries a sample of the kernels has no kernel for some of these shapes.
    let least = if carries_all() { shapes.len() } else { shapes.len() - 4 };
    assert!(ran >= least, "{ran} of {} shapes ran", shapes.len());
}

#[test]
fn words_and_work_of_a_shape() {
    let check = |shape: &str, label: &str, flops: f64, bytes: f64, cold: bool| {
        let workload = one(shape).unwrap_or_else(|e| panic!("{shape}: {e}"));
        assert_eq!(workload.label, label);
        assert_eq!([workload.flops, workload.least_bytes], [flops, bytes], "{label}");
        assert_eq!(workload.cold, cold, "{label}");
    };
    check(
        r#"{"batch": 2, "heads_q": 4, "heads_k": 2, "seqlen_q": 8, "seqlen_k": 8, "head_dim": 64,
            "causal": true}"#,
        "f16 batch 2, heads 4/2, seqlen 8/8, head_dim 64, causal",
        4.0 * (2 * 4 * 64 * 32) as f64,
        2.0 * 2.0 * (2 * 64 * 8 * (4 + 2)) as f64,
        false,
    );
    // The pairs are 3 sequences with 100 keys and one with 20. The bytes belong to keys and values of 2
    // heads, and to queries and output of 8 heads.
    let (q, kv) = (2.0 * 2.0 * (4 * 8 * 64) as f64, 2.0 * (320 * 2 * 64) as f64);
    check(
        r#"{"sequences": [[3, 1, 100], [1, 1, 20]], "heads_q": 8, "heads_k": 2, "head_dim": 64, "page": 0}"#,
        "f16, sequences 3 x 1/100 + 1 x 1/20, heads 8/2, head_dim 64, full, dense cache NHD",
        4.0 * (8 * 64 * 320) as f64,
        q + 2.0 * kv,
        true,
    );
    check(
        r#"{"sequences": [[3, 1, 100], [1, 1, 20]], "heads_q": 8, "heads_k": 2, "head_dim": 64, "page": 16,
            "layout": "HND", "dtype": "bf16", "kv_dtype": "e4m3", "sinks": true, "softcap": 30.0}"#,
        "bf16 on e4m3, sequences 3 x 1/100 + 1 x 1/20, heads 8/2, head_dim 64, full, softcap 30, pages of 16 \
         HND, sinks",
        4.0 * (8 * 64 * 320) as f64,
        q + kv,
        true,
    );
    // Two groups of two sequences read their first two pages once each.
    check(
        r#"{"sequences": [[1, 1, 100], [1, 1, 50], [1, 1, 40], [1, 1, 52]], "heads_q": 8, "heads_k": 2,
            "head_dim": 64, "page": 16, "shared": [2, 2]}"#,
        "f16, sequences 1 x 1/100 + 1 x 1/50 + 1 x 1/40 + 1 x 1/52, heads 8/2, head_dim 64, full, pages of \
         16 NHD, 2 groups share 2 pages",
        4.0 * (8 * 64 * 242) as f64,
        q + 2.0 * 2.0 * ((242 - 64) * 2 * 64) as f64,
        true,
    );
    // A latent cache's rows are keys and values.
    check(
        r#"{"sequences": [[4, 1, 80]], "heads_q": 8, "heads_k": 1, "head_dim": 576, "latent": 512,
            "page": 64}"#,
        "f16, sequences 4 x 1/80, heads 8/1, head_dim 576, full, pages of 64 NHD, latent 512",
        2.0 * (8 * 320 * (576 + 512)) as f64,
        2.0 * (4 * 8 * (576 + 512)) as f64 + 2.0 * (320 * 576) as f64,
        true,
    );
    // Rows that have their own scales are 656 bytes.
    check(
        r#"{"sequences": [[4, 1, 80]], "heads_q": 8, "heads_k": 1, "head_dim": 576, "latent": 512,
            "page": 64, "dtype": "bf16", "kv_dtype": "e4m3_scaled"}"#,
        "bf16 on e4m3_scaled, sequences 4 x 1/80, heads 8/1, head_dim 576, full, pages of 64 NHD, latent 512",
        2.0 * (8 * 320 * (576 + 512)) as f64,
        2.0 * (4 * 8 * (576 + 512)) as f64 + (320 * 656) as f64,
        true,
    );
    check(
        r#"{"append": 10, "heads_k": 1, "head_dim": 576, "latent": 512, "dtype": "bf16",
            "kv_dtype": "e4m3_scaled", "page": 8}"#,
        "bf16 on e4m3_scaled, append of 10 tokens, heads 1, head_dim 576, pages of 8 NHD, latent 512",
        0.0,
        (10 * (2 * 576 + 656)) as f64,
        true,
    );
    // Lists name any rows, and each list reads its own.
    check(
        r#"{"sequences": [[4, 1, 80]], "heads_q": 8, "heads_k": 1, "head_dim": 576, "latent": 512,
            "listed": true, "page": 64}"#,
        "f16, sequences 4 x 1/80, heads 8/1, head_dim 576, full, pages of 64 NHD, latent 512, lists",
        2.0 * (8 * 320 * (576 + 512)) as f64,
        2.0 * (4 * 8 * (576 + 512)) as f64 + 2.0 * (320 * 576) as f64,
        true,
    );
    // With a window of 10 keys, the query of each of the four sequences sees 10 keys.
    check(
        r#"{"sequences": [[3, 1, 100], [1, 1, 20]], "heads_q": 8, "heads_k": 2, "head_dim": 64, "page": 1,
            "window": [9, 0]}"#,
        "f16, sequences 3 x 1/100 + 1 x 1/20, heads 8/2, head_dim 64, window 9,0, pages of 1 NHD",
        4.0 * (8 * 64 * 40) as f64,
        q + 2.0 * 2.0 * (40 * 2 * 64) as f64,
        true,
    );
    // A causal square of 6 queries and 6 keys counts as half of the full square. The 2 queries on 5 keys see
    // 4 and 5 keys.
    check(
        r#"{"sequences": [[1, 6, 6], [1, 2, 5]], "heads_q": 2, "heads_k": 1, "head_dim": 64,
            "causal": true}"#,
        "f16, sequences 1 x 6/6 + 1 x 2/5, heads 2/1, head_dim 64, causal, packed",
        4.0 * (2 * 64 * (18 + 9)) as f64,
        2.0 * 2.0 * (64 * (8 * 2 + 11)) as f64,
        false,
    );
    check(
        r#"{"append": 10, "heads_k": 2, "head_dim": 64, "kv_dtype": "e4m3", "page": 8}"#,
        "f16 on e4m3, append of 10 tokens, heads 2, head_dim 64, pages of 8 NHD",
        0.0,
        (2 + 1) as f64 * (2 * 10 * 2 * 64) as f64,
        true,
    );
    check(
        r#"{"backward": {"batch": 2, "heads_q": 4, "heads_k": 2, "seqlen_q": 8, "seqlen_k": 8, "head_dim": 64,
            "packed": false}}"#,
        "backward of f16 batch 2, heads 4/2, seqlen 8/8, head_dim 64, full",
        10.0 * (2 * 4 * 64 * 64) as f64,
        2.0 * 2.0 * 2.0 * (2 * 64 * 8 * (4 + 2)) as f64 + 4.0 * (2 * 4 * 8) as f64,
        false,
    );
    check(
        r#"{"merge": 10, "heads_q": 2, "head_dim": 64}"#,
        "f16, merge of 2 states of 10 tokens, heads 2, head_dim 64",
        0.0,
        3.0 * (10 * 2 * (64 * 2 + 4)) as f64,
        true,
    );
}

#[test]
fn files_that_are_not_suites() {
    let error = |only: &str| read(None, &[only.to_owned()]).map(drop).expect_err("unknown").to_string();
    assert!(
        error("decoding")
            .contains("only append, backward, chunked, decode, extra, headline, hopper, hopper-extra")
    );
    assert_eq!(parse(LIKE).expect("it shows a valid file")["mine"].len(), 2);
}
