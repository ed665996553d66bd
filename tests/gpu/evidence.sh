#!/bin/sh
# Writes the GPU machine's part of docs/evidence. Each call takes less than ten minutes and builds nothing. In the packed folder:
#   ./evidence.sh list                 list the calls: name, time limit, outputs, needs
#   ./evidence.sh run NAME .. OUT      make these calls, `all` of them for NAME; a repeated call replaces its earlier outputs
#   ./evidence.sh dry OUT              test the script in the simulator, in a minute: no GPU, no Python
#   ./evidence.sh part NAME            print the kernels of a part, such as `cache`
#   ./evidence.sh pack OUT FILE        pack OUT as .tar.gz; unpack it in docs/evidence/DEVICE
# On a machine of several GPUs, each GPU makes one call at a time, on its share of the cores. Several machines
# may fill one OUT. The exit code is the number of failed commands, including calls that lack what they need.
#
#   GPUS=N                             the number of GPUs [default: all]
#   COMMIT=ID                          [default: the commit in about.txt, which gpu-pack writes]
#   PEER_TESTS=FILE                    FlashAttention's tests/test_flash_attn.py
#   FLASHINFER_TESTS=FOLDER            the folder that has FlashInfer's tests/
#   CANDLE=FOLDER                      candle-pack, which `cargo xtask candle gpu-pack` makes
#   BASE=FOLDER                        another commit's packed folder
#   OWN=FOLDER                         the folder that `cargo xtask gpu-pack --own` makes
#   SECONDS_OF_CALL=N                  end calls after N seconds, to try them
#   SOAK_LAUNCHES=100                  launches per round of soak
set -u

# The parts of the table of kernels: NAME: kernels.
parts() {
    cat << 'END'
forward: the portable forward kernels, f16
forward-bf16: the portable forward kernels, bf16
varlen: portable varlen, split-KV and merge kernels
hopper: Hopper's kernels on dense tensors
hopper-keys: Hopper's kernels: varlen, paged, MLA
cache: decode and MLA kernels
paged: portable paged kernels, mixed batches, append kernels
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
compare-prefill | 570 | torch fa4 | compare-prefill.json: headline, prefill, extra; f16 and bf16; FlashAttention-2, -4 and cuDNN
compare-hopper | 570 | torch fa4 | compare-hopper.json: long problems, f16
compare-hopper-bf16 | 570 | torch fa4 | compare-hopper-bf16.json: long problems, bf16
compare-curve | 570 | torch fa4 | compare-curve.json: 512 to 16384 keys, full and causal, D 64 and 128, for the page's plots
growing | 570 | torch fa4 | growing.json: growing keys, L2 cold, f16
growing-bf16 | 570 | torch fa4 | growing-bf16.json: growing keys, L2 cold, bf16
sustained | 570 | torch fa4 | sustained.json: half a second back to back
serving-decode | 570 | torch | serving-decode.json, .svg: KV caches; cuDNN and FlashAttention-2
serving-batch | 570 | torch | serving-batch.json, .svg: ragged and varlen batches, graphs, append, merge
serving-requests | 570 | torch flashinfer | serving-requests.json, .svg: shared prefixes, mixed batches, e4m3 prefill, rotary appends
mla | 570 | torch flash_mla flashinfer | mla.json: MLA decode with 16, 64 and 128 heads
mla-portable | 570 | torch | mla-portable.json: MLA decode with 64 and 128 heads by the portable kernel, beside its products
widths | 570 | torch fa4 | widths.json: keys of 192 columns, values of 128
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

die() {
    echo "$*" >&2
    exit 2
}

# Ends a call that lacks what it needs.
lacks() {
    echo "$call: $* (FAILED)" >&2
    # `about` drops the text before the first colon.
    echo "$call: $call: $* (FAILED)" >> "$COMMANDS"
    exit 1
}

# Ends a call that lacks a program, a Python package or a caller's packed folder. compare.py does without FlashAttention-4 (fa4).
has() {
    for need in $(column "$call" 3); do
        case $need in
            OWN) [ -n "$own" ] || lacks "OWN names no packed folder of a caller's variants" ;;
            compute-sanitizer | ncu) command -v "$need" > /dev/null || lacks "$need is not in PATH" ;;
            torch | pytest | einops | flash_mla | flashinfer)
                python3 -c 'import importlib.util as u, sys; sys.exit(not u.find_spec(sys.argv[1]))' "$need" 2> /dev/null \
                    || lacks "python3 has no package $need"
                ;;
        esac
    done
}

# Converts lines into the elements of a JSON array.
quoted() {
    tr -d '\000-\010\013-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/	/ /g; s/.*/  "&"/' | sed '$!s/$/,/'
}

# Prints the absolute path of a folder or file; nothing without an argument.
whole() {
    [ -z "$1" ] || realpath -e "$1" 2> /dev/null || die "$1 is not there"
}

# Runs a command with its time limit. `timeout` and the command are a process group of their own, so the trap of
# `one` sends its signal to `timeout`.
timed() {
    running=
    timeout -k 25 "$limit" "$@" &
    running=$!
    [ "$ended" != early ] || kill -s TERM "$running" 2> /dev/null
    wait "$running"
    status=$?
    # Each signal ends a `wait`.
    while kill -s 0 "$running" 2> /dev/null; do
        wait "$running"
        status=$?
    done
    # A signal that meets `timeout` before its program's start leaves the program behind.
    if [ -n "$ended" ] && kill -s TERM -- "-$running" 2> /dev/null; then
        while kill -s 0 -- "-$running" 2> /dev/null; do sleep 0.2; done
    fi
    return "$status"
}

# Runs a command with its time limit, and notes the command line as a user would type it, with one kernel for many.
run() {
    shown=$(echo "$*" | sed "s|--config .*--config [^ ]*|--config NAME ..|; s|$out/||g; s|$out|.|g; s|${base:-/none}|BASE|g; s|${tests:-/none}|TESTS|g; s|${infer:-/none}|TESTS|g; s|${candle:-/none}|CANDLE|g; s|${own:-/none}|OWN|g; s|^env ||")
    echo "== $shown" >&2
    began=$(date +%s)
    # On SIGTERM, a program reports the results that it has.
    [ -z "$ended" ] && timed "$@" || { failed=$((failed + 1)); shown="$shown (FAILED)"; }
    echo "== $(($(date +%s) - began)) s: $shown" >&2
    echo "$call: $shown" >> "$COMMANDS"
}

# Returns whether the call goes on. An ended call only notes its further commands, and leaves their earlier outputs.
goes_on() {
    [ -z "$ended" ] || {
        run "$@"
        return 1
    }
}

# Runs a command like `run`, and writes its output to the file.
into() {
    file=$out/$1
    shift
    goes_on "$@" || return
    run "$@" > "$file"
    [ -s "$file" ] || rm "$file"
}

# Runs a program that passes or fails, and keeps its output in program-NAME.json.
program() {
    name=$1 before=$failed
    shift
    goes_on "$@" || return
    run "$@" > "$out/$name.said" 2>&1
    passed=$([ "$failed" = "$before" ] && echo true || echo false)
    printf '{"program": "%s", "passed": %s, "said": [\n%s\n]}\n' "$name" "$passed" "$(quoted < "$out/$name.said")" \
        > "$out/program-$name.json"
    cat "$out/$name.said" >&2
    rm "$out/$name.said"
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
        forward-bf16) kernels '^fwd_bf16' '_packed$|_split' ;;
        varlen) kernels '^fwd_.*(_packed$|_split)|^merge' ;;
        hopper) kernels '^hopper_(f16|bf16)' ;;
        hopper-keys) kernels '^hopper_(packed|paged|mla)' ;;
        cache) kernels '^decode|^mla' ;;
        paged) kernels '^paged|^mixed_few|^append' ;;
    esac
}

compare() {
    file=$1
    shift
    run python3 compare.py "$@" --peers $peers --no-overhead --seconds $((limit - 60)) --out "$out/$file.json"
}

candle() {
    [ -n "$candle" ] || lacks "CANDLE names no candle-pack"
    folder=$out/$call
    rm -rf "$folder"
    mkdir "$folder"
    run env OUT="$folder" TMPDIR="$folder" sh "$candle/run.sh" "$@"
    # The programs are not results.
    rm -rf "$folder/ferroflash-candle"
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
        widths) run python3 widths.py --seconds $((limit - 60)) --out "$out/widths.json" ;;
        variants) run python3 variants.py --seconds $((limit - 60)) --out "$out/$call.json" ;;
        variants-bf16) run python3 variants.py --dtypes bf16 --seconds $((limit - 60)) --out "$out/$call.json" ;;
        variants-long) run python3 variants.py --dtypes f16 bf16 --seqlens 8192 --seconds $((limit - 60)) --out "$out/$call.json" ;;
        variants-fa4)
            run python3 "$own/variants.py" --only alibi softcap documents prefix natten --dims 128 --seqlens 4096 --fa4 \
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
            run python3 "$own/variants.py" --only $names --seqlens 1024 4096 8192 --seconds $((limit - 60)) --out "$out/$call.json"
            ;;
        bench) into bench.json ./ferroflash bench --seconds $((limit - 40)) --json ;;
        bench-int8) into "$call.json" ./ferroflash bench --file int8.json --timing cold --seconds $((limit - 40)) --json ;;
        report) run ./ferroflash report --seconds $((limit - 30)) --output "$out" ;;
        profile)
            run python3 nsight.py "$out/profile.json" hopper_f16_d128_full hopper_f16_d128_causal hopper_f16_d64 \
                fwd_f16_d64_full_32x128_k2 fwd_f16_d64_causal_32x128_k2 --length 8192
            ;;
        candle-check)
            candle tests callers check
            for name in tests callers check; do
                passed=$(grep -q "^$name: exit 0," "$folder/steps.txt" && echo true || echo false)
                printf '{"program": "candle-%s", "passed": %s, "said": [\n%s\n]}\n' "$name" "$passed" \
                    "$(quoted < "$folder/$name.txt")" > "$out/program-candle-$name.json"
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

# Prints the commit of this folder.
commit() {
    commit=${COMMIT:-$(sed -n 's/^commit //p' about.txt 2> /dev/null)}
    echo "${commit:-unknown}"
}

# Writes the machine, date and commands of this run, and of earlier calls that this run did not repeat.
# Several runs may fill one folder at once: a subshell holds the lock.
about() (
    exec 9> "$out/.lock"
    flock 9
    touch "$out/commands.txt"
    # If a call ran again, the new line `NAME: command` replaces the old one.
    awk -F': ' 'FILENAME == ARGV[1] { again[$1] = 1; next } !($1 in again)' "$COMMANDS" "$out/commands.txt" > "$COMMANDS.old"
    cat "$COMMANDS.old" "$COMMANDS" > "$out/commands.txt"
    rm "$COMMANDS.old" "$COMMANDS"
    device="PTX simulator"
    if command -v nvidia-smi > /dev/null; then
        device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader -i 0 | sed 's/, /, driver /')
    fi
    cat > "$out/run.json" << END
{"device": "$device", "commit": "$(commit)", "date": "$(date -u +%Y-%m-%d)", "commands": [
$(sed 's/^[^:]*: //' "$out/commands.txt" | quoted)
]}
END
)

# Ends a call after the report of the command that runs. A second signal would end that command without its report.
# A command that has no process number yet gets the signal as soon as it has one.
ended() {
    [ -n "$ended" ] || [ -z "$running" ] || kill -s TERM "$running" 2> /dev/null
    ended=${ended:-${running:-early}}
}

# Makes one call. The exit code says whether a command failed.
one() {
    call=$1 tests=${PEER_TESTS:-} infer=${FLASHINFER_TESTS:-} base=${BASE:-} candle=${CANDLE:-} own=${OWN:-}
    limit=$(column "$call" 2)
    # Dry runs have no line in the table.
    : "${limit:=570}"
    [ "${SECONDS_OF_CALL:-999}" -gt "$limit" ] || limit=$SECONDS_OF_CALL
    failed=0 ended='' running='' peers="fa2 cudnn fa4"
    trap ended TERM INT HUP
    has
    call
    exit $((failed > 0))
}

# Ends all calls: their process group, or the process that has yet to make the group.
end_calls() {
    ended=yes
    [ -z "$calls" ] || kill -s TERM -- "-$calls" 2> /dev/null || kill -s TERM "$calls" 2> /dev/null
}

# Makes the calls: each GPU takes a call when it has made its last one, and uses its share of the cores.
made() {
    PEER_TESTS=$(whole "${PEER_TESTS:-}") || exit 2
    FLASHINFER_TESTS=$(whole "${FLASHINFER_TESTS:-}") || exit 2
    BASE=$(whole "${BASE:-}") || exit 2
    CANDLE=$(whole "${CANDLE:-}") || exit 2
    OWN=$(whole "${OWN:-}") || exit 2
    export PEER_TESTS FLASHINFER_TESTS BASE CANDLE OWN
    # The Python programs start ./ferroflash.
    cd "$(dirname "$0")" || exit 2
    [ -x ./ferroflash ] || die "no ./ferroflash here: run evidence.sh of a folder that \`cargo xtask gpu-pack\` made"
    case $GPUS in
        '' | 0 | *[!0-9]*) die "GPUS=$GPUS: a number of GPUs, at least 1" ;;
    esac
    cores=$(($(nproc) / GPUS))
    [ "$cores" -gt 0 ] || die "GPUS=$GPUS: this machine has $(nproc) cores; at least one for each GPU"
    # One folder is the evidence of one commit.
    other=$(sed -n 's/.*"commit": "\([^"]*\)".*/\1/p' "$out/run.json" 2> /dev/null)
    [ "${other:-$(commit)}" = "$(commit)" ] \
        || die "$out has the results of commit $other, and this program is commit $(commit); name another folder"
    export COMMANDS="$out/commands.$$"
    : > "$COMMANDS"
    # Another run of another commit must find this commit.
    about
    : > "$COMMANDS"
    # If this script is ended, its calls end too, with the results that they have.
    calls='' ended=''
    trap end_calls TERM INT HUP
    printf '%s\n' "$@" | GPUS=$GPUS setsid xargs -P "$GPUS" --process-slot-var=SLOT -I NAME sh -c '
        [ "$GPUS" = 1 ] && exec sh ./evidence.sh one "$2" "$3"
        export CUDA_VISIBLE_DEVICES=$SLOT
        exec taskset -c "$((SLOT * $1))-$((SLOT * $1 + $1 - 1))" sh ./evidence.sh one "$2" "$3"' \
        - "$cores" NAME "$out" &
    calls=$!
    [ -z "$ended" ] || end_calls
    wait "$calls"
    # A signal ends the first `wait`. It also ends xargs, whose calls have yet to report.
    wait "$calls"
    while kill -s 0 -- "-$calls" 2> /dev/null; do sleep 0.2; done
    failed=$(grep -c "(FAILED)$" "$COMMANDS")
    for name; do
        grep -q "^$name: " "$COMMANDS" && continue
        failed=$((failed + 1))
        # The outputs of an earlier run stay, and so does its command.
        grep -q "^$name: " "$out/commands.txt" || echo "$name: $name: ended early (FAILED)" >> "$COMMANDS"
    done
    about
    echo "$failed failed; $out/run.json says what ran" >&2
    exit "$failed"
}

# Prints the number of GPUs; 1 on a machine without a GPU.
gpus() {
    found=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU') || found=1
    echo "${GPUS:-$found}"
}

case ${1:-} in
    list)
        table | awk -F' [|] ' '{ printf "%-24s %4d s  %s%s\n", $1, $2, $4, ($3 == "-" ? "" : "  [needs " $3 "]") }'
        ;;
    run)
        shift
        [ $# -ge 2 ] || die "usage: $0 run NAME .. OUT; $0 list says the names"
        names=
        while [ $# -gt 1 ]; do
            if [ "$1" = all ]; then
                # A sweep chooses other kernels, and `base` compares commits: neither is evidence of one commit.
                names="$names $(table | awk -F' [|] ' '$1 !~ /^(sweep|base)/ { print $1 }')"
                shift
                continue
            fi
            [ -n "$(column "$1" 1)" ] || die "no call \`$1\`; $0 list says which there are"
            names="$names $1"
            shift
        done
        out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
        GPUS=$(gpus)
        # A name that occurs twice is one call.
        made $(printf '%s\n' $names | awk '!seen[$0]++')
        ;;
    dry)
        [ $# -eq 2 ] || die "usage: $0 dry OUT"
        out=$(mkdir -p "$2" && cd "$2" && pwd) || exit 2
        GPUS=1
        made dry-verify dry-sanitize dry-agree dry-soak dry-fuzz dry-report
        ;;
    one)
        out=$3
        one "$2"
        ;;
    part)
        # Prints the kernels of a part of the table, one per line.
        parts | grep -q "^${2:-}:" || die "no part \`${2:-}\`; the parts are: $(parts | cut -d: -f1 | tr '\n' ' ')"
        cd "$(dirname "$0")" || exit 2
        [ -x ./ferroflash ] || die "no ./ferroflash here: run evidence.sh of a folder that \`cargo xtask gpu-pack\` made"
        part "$2" | sed 's/^--config //'
        ;;
    pack)
        [ $# -eq 3 ] || die "usage: $0 pack OUT FILE"
        tar -czf "$3" -C "$2" .
        ;;
    *) die "usage: $0 list | run NAME .. OUT | dry OUT | pack OUT FILE" ;;
esac
