#!/bin/bash
# Checks and measures attention on several GPUs of one machine, beside PyTorch's context_parallel:
#
#     bench/context_parallel.sh OUT [PART ..]
#
# OUT gets a log per part and summary.log. Parts, in their order: checks lost ring many torch long variants.
# Each program has a limit of its own, and all parts together end after SECONDS_IN_ALL seconds (240): what has
# no time is left out. GPUS (2) is the number of ranks. The program `ring` lies beside this script or in
# target/release/examples; RING names another one. Python must have PyTorch and its NCCL; NCCL_LIB names
# another folder of libnccl.so.2. docs/several-gpus.md explains the lines of the logs.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fail() {
    echo "context_parallel.sh: $*" >&2
    exit 2
}
[ $# -ge 1 ] || fail "no folder for the logs; call: $0 OUT [checks lost ring many torch long variants]"
out=$1
shift
parts=${*:-checks lost ring many torch long variants}
for part in $parts; do
    case $part in
    checks | lost | ring | many | torch | long | variants) ;;
    *) fail "part $part: it must be checks, lost, ring, many, torch, long or variants" ;;
    esac
done
mkdir -p "$out" || fail "$out is no folder"
out=$(cd "$out" && pwd)
all=${SECONDS_IN_ALL:-240}
gpus=${GPUS:-2}

ring=${RING:-$here/ring}
[ -e "$ring" ] || ring=$here/../target/release/examples/ring
build="cargo build --release -p ferroflash-context-parallel --example ring"
[ -e "$ring" ] || fail "no program $ring; build it: $build"
[ -x "$ring" ] || chmod +x "$ring" || fail "$ring is no program"

# NCCL: cudarc looks for libnccl.so, and PyTorch's package has libnccl.so.2.
find_nccl='
import pathlib, sys
for folder in map(pathlib.Path, sys.path):
    for file in sorted(folder.glob("nvidia/*/lib/libnccl.so*")):
        print(file.parent); sys.exit()
'
folder=${NCCL_LIB:-$(python3 -c "$find_nccl" 2>/dev/null)}
library=$(ls "${folder:-/nowhere}"/libnccl.so* 2>/dev/null | head -1)
[ -n "$library" ] || fail "no libnccl.so.2 in ${folder:-the packages of python3};" \
    "install nvidia-nccl-cu13 or set NCCL_LIB"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/lib"
ln -s "$library" "$work/lib/libnccl.so"
export LD_LIBRARY_PATH=$work/lib:$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# NVLink multicast stays off: programs that end in the middle of it may leave GPUs of a shared host unusable.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1

say() {
    echo "[$SECONDS s] $*" | tee -a "$out/summary.log"
}

# step LOG LIMIT COMMAND..: appends the output of a command to a log.
step() {
    local log=$out/$1 limit=$2 code
    shift 2
    local left=$((all - SECONDS - 3))
    if [ "$left" -lt 5 ]; then
        say "left out, no time: ${*//$here\//}"
        return 1
    fi
    [ "$limit" -le "$left" ] || limit=$left
    echo "# $*" >>"$log"
    timeout -k 3 "$limit" "$@" >>"$log" 2>&1
    code=$?
    case $code in
    124 | 137) say "NOT ENDED after $limit s: ${*//$here\//}" ;;
    *) say "code $code: ${*//$here\//}" ;;
    esac
    return $code
}

run() {
    local log=$1 limit=$2
    shift 2
    step "$log" "$limit" "$ring" --gpus "$gpus" --seconds "$limit" "$@"
}

# Kills a rank while all ranks compute. The program must end with an error.
kill_a_rank() {
    local log=$out/lost.log begun child pid
    if [ $((all - SECONDS)) -lt 30 ]; then
        say "left out, no time: a killed rank"
        return
    fi
    timeout -k 3 70 "$ring" --gpus "$gpus" --checks first --forms ring --tokens 131072 --keys "" \
        --rounds 100 --seconds 60 >"$work/killed" 2>&1 &
    pid=$!
    for _ in $(seq 300); do
        grep -q '"check": "decode"' "$work/killed" && break
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    sleep 1
    child=
    for of in /proc/[0-9]*; do
        { tr '\0' ' ' <"$of/cmdline"; } 2>/dev/null | grep -q -- "--seconds 60 --rank 1 " || continue
        child=${of#/proc/}
    done
    if [ -z "$child" ]; then
        say "FAILED: no rank 1 to kill"
        kill $pid 2>/dev/null
    else
        begun=$(date +%s%N)
        kill -9 "$child"
        (sleep 20 && kill $pid) 2>/dev/null &
        wait $pid
        say "a killed rank: code $?, not 0, after $((($(date +%s%N) - begun) / 1000000)) ms"
    fi
    cat "$work/killed" >>"$log"
}

# The forms whose checks have succeeded, if the checks have run.
forms=ring,gather,ulysses
part_checks() {
    local form passed=
    export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P NCCL_DEBUG_FILE=$work/nccl.%p
    for form in ring gather ulysses; do
        run checks.log 60 --forms $form --tokens "" --keys "" && passed=$passed,$form
        unset NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE
    done
    cat "$work"/nccl.* >"$out/nccl.log" 2>/dev/null
    forms=${passed#,}
    [ -n "$forms" ] || say "FAILED: no form has passed its checks"
}
part_lost() {
    run lost.log 40 --forms ring --checks first --tokens "" --keys "" --lose 1
    kill_a_rank
}
part_ring() {
    [ -n "$forms" ] || return
    run ring.log 75 --checks first --forms "$forms" --tokens 16384,32768,65536,131072 --keys 1048576 --rounds 20
}
part_many() {
    [ -n "$forms" ] || return
    run ring.log 45 --checks first --forms "$forms" --tokens 131072 --sequences 8,64 --keys "" --rounds 10
}
part_torch() {
    step torch.log 75 python3 -m torch.distributed.run --nnodes 1 --nproc-per-node "$gpus" \
        --master-addr 127.0.0.1 --master-port 29517 "$here/context_parallel.py" \
        --tokens 16384 32768 65536 131072 --methods alltoall --backends cudnn flash
}
part_long() {
    run ring.log 45 --checks first --forms ring --tokens 262144 --keys "" --rounds 2
    run ring.log 90 --checks first --forms ring --tokens 524288 --keys "" --rounds 1
}
part_variants() {
    local variant
    for variant in NCCL_P2P_USE_CUDA_MEMCPY=1 NCCL_MAX_P2P_NCHANNELS=4 NCCL_MAX_P2P_NCHANNELS=32; do
        echo "# $variant" >>"$out/variants.log"
        step variants.log 30 env $variant "$ring" --gpus "$gpus" --seconds 30 --checks first --forms ring \
            --tokens 16384,65536 --keys "" --rounds 20
    done
}

{
    nvidia-smi
    nvidia-smi topo -m
    nvidia-smi nvlink -s
    echo "NCCL: $library"
    python3 -c 'import torch; print("torch", torch.__version__, "nccl", torch.cuda.nccl.version())'
} >"$out/machine.log" 2>&1
for part in $parts; do
    "part_$part"
done
say "done"
