# The calls of evidence.sh: their table, and the commands of each call. evidence.sh reads this file and defines the
# functions that run a command.

# The parts of the table of kernels: NAME: kernels.
parts() {
    cat << 'END'
forward: the portable forward kernels, f16
forward-bf16: the portable forward kernels, bf16; statistics, append kernels
int8: portable kernels with scores of int8
fp8: Hopper's kernels with products of e4m3, or with largest scores; kernels that lay values; sparse MLA
varlen: portable varlen, split-KV and merge kernels; padded queries, largest scores of heads
hopper: Hopper's kernels on dense tensors
hopper-keys: Hopper's kernels: varlen, paged, MLA, lists of keys; portable MLA kernels
cache: decode kernels
paged: portable paged kernels, mixed batches
backward: portable backward kernels
backward-hopper: Hopper's backward kernels
END
}

# Prints the lines of a check that makes one call for each part.
each_part() {
    parts | sed "s/^\([^:]*\): \(.*\)/$1-\1 | 570 | $2 | $1-\1.json: $3 \2/"
}

# NAME | time limit in seconds | needs | outputs
table() {
    cat << 'END'
programs | 240 | - | program-gpu.json, program-embed.json, program-cudarc.json: the GPU tests and the embedding examples
shim | 240 | torch | shim.json: the Python fronts against f64 and SDPA
first-call | 60 | - | first-call.json: the cost of a process' first output
END
    each_part verify - "every problem against f64:"
    each_part sanitize compute-sanitizer "four tools on"
    each_part agree - "the GPU cross-checked with the simulator:"
    cat << 'END'
sanitize-h200-simulated | 570 | - | simulator-sanitize-h200.json: the simulator's checks as an H200; uses no GPU
soak | 570 | - | soak.json: every kernel, SOAK_LAUNCHES per round, equal in every bit
fuzz | 570 | - | fuzz.json: random problems of every family for nine minutes
invariance | 240 | torch | invariance.json: one sequence's bits in 200 batches
peers-flash-attention | 570 | torch pytest einops PEER_TESTS | peers.json: FlashAttention's test file, unmodified, on FerroFlash
peers-flashinfer | 570 | torch pytest einops FLASHINFER_TESTS | peers-flashinfer.json: FlashInfer's test files, unmodified
peers-flash-mla | 240 | torch pytest FLASHMLA_TESTS | peers-flash-mla.json: FlashMLA's test files, unmodified
compare-prefill | 570 | torch fa4 | compare-prefill.json: headline, prefill, extra; f16 and bf16; FlashAttention-2, -4 and cuDNN
compare-hopper | 570 | torch fa4 | compare-hopper.json: long problems, f16
compare-hopper-bf16 | 570 | torch fa4 | compare-hopper-bf16.json: long problems, bf16
compare-curve | 570 | torch fa4 | compare-curve.json: 512 to 16384 keys, full and causal, D 64 and 128, for the page's plots
growing | 570 | torch fa4 | growing.json: growing keys, L2 cold, f16
growing-bf16 | 570 | torch fa4 | growing-bf16.json: growing keys, L2 cold, bf16
sustained | 570 | torch fa4 | sustained.json: half a second back to back
serving-decode | 570 | torch | serving-decode.json, .svg: KV caches; cuDNN and FlashAttention-2
serving-batch | 570 | torch | serving-batch.json, .svg: decode of unequal lengths, varlen batches, graphs, append, merge
serving-requests | 570 | torch flashinfer | serving-requests.json, .svg: shared prefixes, mixed batches, e4m3 prefill, rotary appends
mla | 570 | torch flash_mla flashinfer | mla.json: MLA decode with 16, 64 and 128 heads
mla-portable | 570 | torch | mla-portable.json: MLA decode with 64 and 128 heads by the portable kernel, beside its products
eight-bits | 570 | torch fa3 | eight-bits.json: products of eight bits beside FlashAttention-3, cuDNN and 16 bits; biases up to 64k keys
asked | 570 | torch | asked.json: what largest scores, entropies and batch invariance cost
sparse | 570 | torch flash_mla | sparse.json: sparse MLA of 1 to 4096 queries with lists of 2048 keys
widths | 570 | torch fa4 | widths.json: keys of 192 columns, values of 128
backward | 570 | torch fa4 | backward.json: gradients of 512 to 16384 keys, beside FlashAttention-2, -4 and cuDNN, bf16
backward-f16 | 570 | torch fa4 | backward-f16.json: the same, f16
backward-shapes | 570 | torch fa4 | backward-shapes.json: gradients of GQA, other head dims and windows, bf16 and f16
backward-whole | 570 | torch fa4 | backward-whole.json: the forward and the backward pass of one call, bf16
backward-portable | 570 | torch | backward-portable.json: portable kernels beside FlashAttention-2, bf16
backward-varlen | 570 | torch fa4 | backward-varlen.json: gradients of varlen sequences, beside FlashAttention-2 and -4, bf16
backward-variants | 570 | torch | backward-variants.json: gradients with windows, scores and sinks, beside flex_attention, bf16
variants | 570 | torch | variants.json: masks, scores and biases beside flex_attention, f16
variants-bf16 | 570 | torch | variants-bf16.json: the same, bf16
variants-long | 570 | torch | variants-long.json: the same on 8192 keys, f16 and bf16
variants-fa4 | 570 | torch fa4 OWN | variants-fa4.json: some of them beside flex_attention's FlashAttention-4 backend
variants-own | 570 | torch OWN | variants-own.json: functions of a caller beside flex_attention
template | 570 | compute-sanitizer OWN | program-template-*.json: the tests of a caller's functions, with four tools
bench | 570 | - | bench.json: FerroFlash alone, every suite
bench-int8 | 570 | - | bench-int8.json: FerroFlash alone: int8 caches beside f16, in one process
report | 570 | - | report.json, report.html: the report that owners of other GPUs send
profile | 570 | torch ncu | profile.json: the headline kernels under Nsight Compute
candle-check | 570 | CANDLE | program-candle-*.json: candle's tests, callers, and every function against f32
candle-calls | 300 | CANDLE | candle-calls.json: call for call beside candle-flash-attn
candle-model | 400 | CANDLE | candle-model.json: a Llama end to end
candle-generate | 300 | CANDLE | generate.json, .svg: text generation end to end
lineage | 300 | torch | lineage.json: the predecessor's workload in every configuration
sweep | 570 | - | sweep.json, and tuning.json for FERROFLASH_TUNING
base | 570 | torch BASE | base.json: FerroFlash and another commit, the planner's choice
base-entries | 570 | torch BASE | base-entries.json: FerroFlash and another commit, kernel by kernel
END
}

# Prints a column of the table's line with this name.
column() {
    table | awk -F' [|] ' -v name="$1" -v at="$2" '$1 == name { print $at }'
}

# Prints `--config NAME ..` for the kernels whose names match one expression and not another.
kernels() {
    ./ferroflash kernels --json | sed -n 's/^ *"name": "\(.*\)",\{0,1\}$/\1/p' | grep -E "$1" | grep -vE "combine|${2:-^$}" \
        | sed 's/^/--config /'
}

# Prints the kernels of a part of the table.
part() {
    case $1 in
        forward) kernels '^fwd_f16' '_packed$|_split' ;;
        forward-bf16) kernels '^fwd_bf16|^stats|^append' '^fwd.*(_packed$|_split)' ;;
        int8) kernels '^int8' ;;
        fp8) kernels '^fp8|^lay|^sparse|^hopper.*_maxima' ;;
        varlen) kernels '^fwd_.*(_packed$|_split)|^merge|^used_queries|^head_maxima' ;;
        hopper) kernels '^hopper_(f16|bf16)' _maxima ;;
        hopper-keys) kernels '^hopper_(packed|paged|mla|sparse)|^mla' _maxima ;;
        cache) kernels '^decode' ;;
        paged) kernels '^paged|^mixed_few|^number_tiles' ;;
        # The kernels of dK and dV, whose problems also run the others.
        backward) kernels '^bwd_' '^bwd_(dbias|delta|dq|dsinks|convert|sum|hopper)' ;;
        backward-hopper) kernels '^bwd_hopper' ;;
    esac
}

compare() {
    file=$1
    shift
    run python3 compare.py "$@" --peers $peers --no-overhead --seconds $((limit - 60)) --out "$out/$file.json"
}

candle() {
    [ -n "$candle" ] || lacks "CANDLE names no candle-pack"
    goes_on sh "$candle/run.sh" "$@" || return
    folder=$out/$call
    rm -rf "$folder"
    mkdir "$folder"
    run env OUT="$folder" TMPDIR="$folder" sh "$candle/run.sh" "$@"
    # The programs are not results.
    rm -rf "$folder/ferroflash-candle"
    [ -n "$began" ]
}

# Makes one call.
call() {
    case $call in
        programs)
            program gpu ./gpu --include-ignored
            program embed ./embed
            program cudarc ./cudarc
            ;;
        shim | lineage | invariance) run python3 "$call.py" "$out/$call.json" ;;
        first-call) into first-call.json env CUDA_CACHE_DISABLE=1 ./ferroflash bench --first-call --json ;;
        sanitize-h200-simulated) into simulator-sanitize-h200.json ./ferroflash sanitize --profile h200 --json ;;
        verify-*) into "$call.json" ./ferroflash verify $(part "${call#verify-}") --json --device gpu ;;
        sanitize-*) into "$call.json" ./ferroflash sanitize $(part "${call#sanitize-}") --json --device gpu ;;
        agree-*) into "$call.json" ./ferroflash cross-check $(part "${call#agree-}") --json --device gpu ;;
        soak) into soak.json ./ferroflash soak --launches "${SOAK_LAUNCHES:-100}" --json --device gpu ;;
        fuzz) into fuzz.json ./ferroflash fuzz --seconds $((limit - 30)) --json --device gpu ;;
        peers-flash-attention)
            [ -n "$tests" ] || lacks "PEER_TESTS names no file"
            run python3 peers.py "$tests" "$out/peers.json" --seconds $((limit - 40))
            ;;
        peers-flashinfer)
            [ -n "$infer" ] || lacks "FLASHINFER_TESTS names no folder"
            run python3 flashinfer_peers.py "$infer" "$out/peers-flashinfer.json" --seconds $((limit - 40))
            ;;
        peers-flash-mla)
            [ -n "$latents" ] || lacks "FLASHMLA_TESTS names no folder"
            run python3 flash_mla_peers.py "$latents" "$out/$call.json" --seconds $((limit - 60))
            ;;
        compare-prefill) compare compare-prefill --only headline prefill extra --dtypes f16 bf16 ;;
        compare-hopper) compare compare-hopper --only hopper hopper-extra ;;
        compare-hopper-bf16) compare compare-hopper-bf16 --only hopper --dtypes bf16 ;;
        compare-curve) compare compare-curve --suites curve.json --only prefill-curve --timing cold ;;
        growing) compare growing --only prefill --growing --timing cold ;;
        growing-bf16) compare growing-bf16 --only prefill --growing --timing cold --dtypes bf16 ;;
        sustained) compare sustained --only prefill --sustained --rounds 1 ;;
        serving-*)
            case $call in
                *-decode) suites="decode decode-fa2 func func-cache decode-paged paged page1 e4m3 shapes speculative" ;;
                *-batch) suites="ragged ragged-paged packed packed-paged packed-equal packed-portable graph append merge" ;;
                *-requests) suites="shapes-flashinfer prefix prefix-flashinfer mixed packed-e4m3 append-rotary append-rotary-q" ;;
            esac
            run python3 serving.py --only $suites --seconds $((limit - 60)) --out "$out/$call.json" --svg "$out/$call.svg"
            ;;
        # flex_attention takes milliseconds here, and minutes to compile.
        mla) run python3 mla.py --peers flash_mla flashinfer sdpa_math --seconds $((limit - 60)) --out "$out/mla.json" ;;
        mla-portable)
            run python3 mla.py --heads 64 128 --config mla_bf16_d576_causal_64x32_s4 --peers --seconds $((limit - 60)) \
                --out "$out/$call.json"
            ;;
        eight-bits) run python3 eight_bits.py --seconds $((limit - 60)) --out "$out/$call.json" ;;
        asked) run python3 asked.py --seconds $((limit - 60)) --out "$out/$call.json" ;;
        sparse) run python3 sparse.py --seconds $((limit - 60)) --out "$out/sparse.json" ;;
        widths) run python3 widths.py --seconds $((limit - 60)) --out "$out/$call.json" ;;
        backward*)
            case $call in
                backward) what="backward.py --suites curve.json --dtypes bf16" ;;
                *-f16) what="backward.py --suites curve.json --dtypes f16" ;;
                *-shapes) what="backward.py --suites gradients.json --dtypes bf16 f16" ;;
                *-whole) what="backward.py --suites curve.json --dtypes bf16 --whole" ;;
                *-portable) what="backward.py --suites curve.json --dtypes bf16 --portable --peers fa2 fa2_deterministic" ;;
                *-varlen) what=backward_varlen.py ;;
                *-variants) what=backward_variants.py ;;
            esac
            run python3 $what --seconds $((limit - 60)) --out "$out/$call.json"
            ;;
        variants) run python3 variants.py --seconds $((limit - 60)) --out "$out/$call.json" ;;
        variants-bf16) run python3 variants.py --dtypes bf16 --seconds $((limit - 60)) --out "$out/$call.json" ;;
        variants-long) run python3 variants.py --dtypes f16 bf16 --seqlens 8192 --seconds $((limit - 60)) --out "$out/$call.json" ;;
        variants-fa4)
            run env PYTHONPATH="$own/python" python3 "$own/variants.py" --only alibi softcap documents prefix natten --dims 128 --seqlens 4096 --fa4 \
                --seconds $((limit - 60)) --out "$out/$call.json"
            ;;
        template)
            limit=$((limit / 4))
            for tool in memcheck racecheck synccheck initcheck; do
                program "template-$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$own/verify-template"
            done
            ;;
        variants-own)
            names="user_causal user_softcap user_alibi natten sparse10 sparse30 sparse60"
            run env PYTHONPATH="$own/python" python3 "$own/variants.py" --only $names --seqlens 1024 4096 8192 --seconds $((limit - 60)) --out "$out/$call.json"
            ;;
        bench) into bench.json ./ferroflash bench --seconds $((limit - 40)) --json ;;
        bench-int8) into "$call.json" ./ferroflash bench --file int8.json --timing cold --seconds $((limit - 40)) --json ;;
        report) run ./ferroflash report --seconds $((limit - 30)) --output "$out" ;;
        profile)
            run python3 nsight.py "$out/profile.json" hopper_f16_d128_full hopper_f16_d128_causal hopper_f16_d64 \
                fwd_f16_d64_full_32x128_k2 fwd_f16_d64_causal_32x128_k2 --length 8192
            ;;
        candle-check)
            candle tests callers check gradients || return
            for name in tests callers check gradients; do
                # An ended call has no text of its further steps.
                [ -f "$folder/$name.txt" ] || continue
                passed=$(grep -q "^$name: exit 0," "$folder/steps.txt" && echo true || echo false)
                said "candle-$name" "$passed" "$folder/$name.txt"
            done
            ;;
        candle-calls) candle calls-full && cp "$folder/calls-full.json" "$out/candle-calls.json" ;;
        candle-model) candle model-full && cp "$folder/model-full.json" "$out/candle-model.json" ;;
        candle-generate) candle generate-full && cp "$folder/generate.json" "$folder/generate.svg" "$out" ;;
        sweep) into sweep.json ./ferroflash sweep --output "$out/tuning.json" --json --device gpu ;;
        base | base-entries)
            [ -n "$base" ] || lacks "BASE names no packed folder of another commit"
            what="--only headline prefill extra --rounds 5"
            [ "$call" = base ] || what="--entries --rounds 3"
            run python3 compare.py --base "$base" $what --peers --no-overhead --seconds $((limit - 60)) --out "$out/$call.json"
            ;;
        dry-*)
            few="--config merge_f16 --config append_copy"
            case $call in
                dry-verify) into verify.json ./ferroflash verify --quick $few --jobs 2 --json --device sim ;;
                dry-sanitize) into sanitize.json ./ferroflash sanitize $few --seeds 1 --json --device sim ;;
                dry-agree) into agree.json ./ferroflash cross-check $few --products 100 --json --device sim ;;
                dry-soak) into soak.json ./ferroflash soak $few --launches 2 --json --device sim ;;
                dry-fuzz) into fuzz.json ./ferroflash fuzz --seconds 2 --json --device sim ;;
                dry-report) run ./ferroflash report --device sim --output "$out" ;;
            esac
            ;;
    esac
}
