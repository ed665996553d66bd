#!/bin/sh
# Makes a GPU machine's part of docs/evidence, in the packed folder: ./evidence.sh OUTPUT COMMIT [STEP ..]
# Without steps, all. Every step runs, and the exit code is the number of commands that failed. Several runs may
# fill one OUTPUT.
#
# For a machine that is lent for minutes:
#   STEP_SECONDS=540       a command is ended after so long
#   FUZZ_SECONDS=300 COMPARE_SECONDS=400 BENCH_SECONDS=240 SERVING_SECONDS=400 PEERS_SECONDS=400
#                          these begin nothing after so long, and keep what they have
#   SOAK_LAUNCHES=1000     launches of a round of soak
#   SOAK="NAME .."         these configurations, each in a file of its own, instead of every kernel in soak.json
#   PEER_TESTS=FILE        FlashAttention's tests/test_flash_attn.py: what the step `peers` runs
#   FLASHINFER_TESTS=FOLDER   that has FlashInfer's tests/: likewise
#   BASE=FOLDER            another commit's packed folder: what the step `base` measures against
set -u
all="gpu embed shim peers verify sanitize agree soak fuzz first-call compare serving base lineage growing sustained
    bench profile sweep"
[ $# -ge 2 ] || { echo "usage: $0 OUTPUT COMMIT [STEP ..]; steps:" $all >&2; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
commit=$2
tests=
[ -z "${PEER_TESTS:-}" ] || tests=$(realpath "$PEER_TESTS") || exit 2
infer=
[ -z "${FLASHINFER_TESTS:-}" ] || infer=$(cd "$FLASHINFER_TESTS" && pwd) || exit 2
base=
[ -z "${BASE:-}" ] || base=$(cd "$BASE" && pwd) || exit 2
shift 2
# The Python programs start ./ferroflash.
cd "$(dirname "$0")" || exit 2
failed=0

# Runs a command, and notes it as somebody would type it.
run() {
    shown=$(echo "$*" | sed "s|$out/||g; s|${base:-$out}|BASE|g; s|${tests:-$out}|TESTS|g; s|${infer:-$out}|TESTS|g; s|^env ||")
    echo "== $shown" >&2
    began=$(date +%s)
    timeout "${STEP_SECONDS:-540}" "$@" || { failed=$((failed + 1)) shown="$shown (FAILED)"; }
    echo "== $(($(date +%s) - began)) s: $shown" >&2
    echo "$shown" >> "$out/commands.txt"
}
# The same, where what the command prints is the file.
into() {
    file=$out/$1
    shift
    run "$@" > "$file"
    [ -s "$file" ] || rm "$file"
}
# Lines as the elements of a JSON array.
quoted() {
    tr -d '\000-\010\013-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/	/ /g; s/.*/  "&"/' | sed '$!s/$/,/'
}
# Runs a program that passes or fails, and keeps what it said in program-NAME.json.
program() {
    name=$1 before=$failed
    shift
    run "$@" > "$out/said.txt"
    passed=$([ "$failed" = "$before" ] && echo true || echo false)
    printf '{"program": "%s", "passed": %s, "said": [\n%s\n]}\n' "$name" "$passed" "$(quoted < "$out/said.txt")" \
        > "$out/program-$name.json"
    cat "$out/said.txt" >&2
    rm "$out/said.txt"
}
step() {
    case $1 in
        gpu) program gpu ./gpu --include-ignored ;;
        embed) program embed ./embed; program cudarc ./cudarc ;;
        verify) run python3 parallel.py verify "$out/verify.json" --all-configs ;;
        sanitize | agree) into "$1.json" ./ferroflash "$1" --json --device gpu ;;
        soak)
            launches="--launches ${SOAK_LAUNCHES:-1000}"
            [ -n "${SOAK:-}" ] || run python3 parallel.py soak "$out/soak.json" $launches
            for name in ${SOAK:-}; do
                into "soak-$(echo "$name" | tr / -).json" ./ferroflash soak --config "$name" $launches --json --device gpu
            done
            ;;
        fuzz) into fuzz.json ./ferroflash fuzz --seconds "${FUZZ_SECONDS:-300}" --json --device gpu ;;
        first-call) into first-call.json env CUDA_CACHE_DISABLE=1 ./ferroflash bench --first-call --json ;;
        compare)
            run python3 compare.py --only headline prefill extra --dtypes f16 bf16 --peers fa2 cudnn \
                --seconds "${COMPARE_SECONDS:-400}" --out "$out/compare.json" --svg "$out/compare.svg"
            ;;
        serving)
            run python3 serving.py --seconds "${SERVING_SECONDS:-400}" --out "$out/serving.json" --svg "$out/serving.svg"
            ;;
        peers)
            [ -n "$tests$infer" ] || echo "peers: left out; PEER_TESTS and FLASHINFER_TESTS name none" >&2
            [ -z "$tests" ] || run python3 peers.py "$tests" "$out/peers.json" --seconds "${PEERS_SECONDS:-400}"
            [ -z "$infer" ] || run python3 flashinfer_peers.py "$infer" "$out/peers-flashinfer.json" \
                --seconds "${PEERS_SECONDS:-400}"
            ;;
        base)
            if [ -z "$base" ]; then
                echo "base: left out; BASE names no packed folder of another commit" >&2
                return
            fi
            run python3 compare.py --base "$base" --only headline prefill extra --peers --rounds 5 --no-overhead \
                --seconds "${COMPARE_SECONDS:-400}" --out "$out/base.json"
            run python3 compare.py --base "$base" --entries --peers --rounds 3 --no-overhead \
                --seconds "${COMPARE_SECONDS:-400}" --out "$out/base-entries.json"
            ;;
        growing)
            run python3 compare.py --only prefill --growing --peers fa2 --no-overhead --out "$out/growing.json"
            ;;
        sustained)
            run python3 compare.py --only prefill --sustained --peers fa2 --rounds 1 --no-overhead \
                --out "$out/sustained.json"
            ;;
        lineage | shim) run python3 "$1.py" "$out/$1.json" ;;
        profile) run python3 nsight.py "$out/profile.json" ;;
        bench) into bench.json ./ferroflash bench --seconds "${BENCH_SECONDS:-240}" --json ;;
        sweep) into sweep.json ./ferroflash sweep --output "$out/tuning.json" --json --device gpu ;;
        *)
            echo "no step \`$1\`; steps:" $all >&2
            failed=$((failed + 1))
            ;;
    esac
}

for name in ${*:-$all}; do
    step "$name"
done
device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader -i 0 | sed 's/, /, driver /')
cat > "$out/run.json" << END
{"device": "$device", "commit": "$commit", "date": "$(date -u +%Y-%m-%d)", "commands": [
$(awk '!seen[$0]++' "$out/commands.txt" | quoted)
]}
END
echo "$failed failed; $out/run.json says what ran" >&2
exit "$failed"
