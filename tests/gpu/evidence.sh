#!/bin/sh
# Makes a GPU machine's part of docs/evidence, in the packed folder: ./evidence.sh OUTPUT COMMIT [STEP ..]
# Without steps, all. Every step runs, and the exit code is the number of commands that failed. Several runs may fill one OUTPUT.
#
#   FUZZ_SECONDS=40 COMPARE_SECONDS=200    less than 300 and 600: for a machine that is lent for minutes
#   SOAK="NAME .."                         these configurations, each in a file of its own, instead of every kernel in soak.json
set -u
all="gpu embed verify sanitize agree soak fuzz first-call compare lineage growing sustained bench profile sweep"
[ $# -ge 2 ] || { echo "usage: $0 OUTPUT COMMIT [STEP ..]; steps: $all" >&2; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
commit=$2
shift 2
# The Python programs start ./ferroflash.
cd "$(dirname "$0")" || exit 2
failed=0

# Runs a command, and notes it as somebody would type it.
run() {
    shown=$(echo "$*" | sed "s|$out/||g; s|^env ||")
    echo "== $shown" >&2
    "$@" || { failed=$((failed + 1)) shown="$shown (FAILED)"; echo "$shown" >&2; }
    echo "$shown" >> "$out/commands.txt"
}
# The same, where what the command prints is the file.
into() {
    file=$out/$1
    shift
    run "$@" > "$file"
    [ -s "$file" ] || rm "$file"
}
step() {
    case $1 in
        gpu) run env FERROFLASH_REQUIRE_GPU=1 ./gpu ;;
        embed) run ./embed; run ./cudarc ;;
        verify) into verify.json ./ferroflash verify --all-configs --json --device gpu ;;
        sanitize | agree) into "$1.json" ./ferroflash "$1" --json --device gpu ;;
        soak)
            [ -n "${SOAK:-}" ] || into soak.json ./ferroflash soak --json --device gpu
            for name in ${SOAK:-}; do
                into "soak-$(echo "$name" | tr / -).json" ./ferroflash soak --config "$name" --json --device gpu
            done
            ;;
        fuzz) into fuzz.json ./ferroflash fuzz --seconds "${FUZZ_SECONDS:-300}" --json --device gpu ;;
        first-call) into first-call.json env CUDA_CACHE_DISABLE=1 ./ferroflash bench --first-call --json ;;
        compare)
            run python3 compare.py --only headline prefill extra --dtypes f16 bf16 --peers fa2 cudnn \
                --seconds "${COMPARE_SECONDS:-600}" --out "$out/compare.json" --svg "$out/compare.svg"
            ;;
        growing) run python3 compare.py --only prefill --growing --peers fa2 --no-overhead --out "$out/growing.json" ;;
        sustained)
            run python3 compare.py --only prefill --sustained --peers fa2 --rounds 1 --no-overhead --out "$out/sustained.json"
            ;;
        lineage | profile) run python3 "$1.py" "$out/$1.json" ;;
        bench) into bench.json ./ferroflash bench --json ;;
        sweep) into sweep.json ./ferroflash sweep --output "$out/tuning.json" --json --device gpu ;;
        *)
            echo "no step \`$1\`; steps: $all" >&2
            failed=$((failed + 1))
            ;;
    esac
}

for name in ${*:-$all}; do
    step "$name"
done
device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader -i 0 | sed 's/, /, driver /')
commands=$(awk '!seen[$0]++' "$out/commands.txt" | sed 's/\\/\\\\/g; s/"/\\"/g; s/.*/  "&"/' | sed '$!s/$/,/')
cat > "$out/run.json" << END
{"device": "$device", "commit": "$commit", "date": "$(date -u +%Y-%m-%d)", "commands": [
$commands
]}
END
echo "$failed failed; $out/run.json says what ran" >&2
exit "$failed"
