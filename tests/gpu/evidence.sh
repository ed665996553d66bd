#!/bin/sh
# Makes a GPU machine's part of docs/evidence, in the packed folder: ./evidence.sh OUTPUT COMMIT [SECONDS OF FUZZING]
# Every step runs; the exit code says whether one failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$1
commit=$2
seconds=${3:-240}
mkdir -p "$out"
failed=0
commands=
step() {
    name=$1
    shift
    echo "== ferroflash $*"
    "$here/ferroflash" "$@" --json --device gpu > "$out/$name.json" || { echo "$name FAILED"; failed=1; }
    commands="$commands${commands:+, }\"ferroflash $* --json --device gpu\""
}
step verify verify --all-configs
step soak soak
step fuzz fuzz --seconds "$seconds"
step sweep sweep --output "$out/tuning.txt"
step bench bench
device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader -i 0)
cat > "$out/run.json" << END
{"device": "$device", "commit": "$commit", "date": "$(date -u +%Y-%m-%d)", "commands": [$commands]}
END
exit $failed
