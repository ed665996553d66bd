#!/bin/sh
# Runs the programs in this folder: sh run.sh [STEP ..]. Writes the results to $OUT.
# Needs an NVIDIA GPU of compute capability 9.0, a driver of CUDA 13, and Python with PyTorch's wheels of CUDA 13 (or
# CUDA 13 itself). Steps: tests callers check gradients calls model generate train; calls-full, model-full and generate-full
# measure longer; train-full compares a larger model's steps with those of plain attention; text continues prompts with the
# checkpoint in $CHECKPOINT. Each step has a time limit.
here=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-$here/results}
work=${TMPDIR:-/tmp}/ferroflash-candle
mkdir -p "$OUT" "$work"
OUT=$(cd "$OUT" && pwd)
: > "$OUT/steps.txt"
python3 - "$here/programs.tar.xz" "$work" <<'P' || exit 1
import sys, tarfile
tarfile.open(sys.argv[1]).extractall(sys.argv[2])
P
# Folders in which the loader finds candle's libraries. The system's folders come first.
LD_LIBRARY_PATH=$(python3 - <<'P'
import glob, os, site, sys
wanted = ["libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10"]
roots = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/local/cuda/lib64", "/usr/local/cuda/compat",
         "/usr/local/cuda-13.0/lib64"] + [p for base in sys.path + site.getsitepackages() for p in glob.glob(base + "/nvidia/*/lib")]
found = []
for name in wanted:
    for root in roots:
        if os.path.exists(f"{root}/{name}"):
            if root not in found: found.append(root)
            break
    else:
        print("not found:", name, file=sys.stderr)
old = os.environ.get("LD_LIBRARY_PATH")
print(":".join(found + ([old] if old else [])))
P
)
export LD_LIBRARY_PATH
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.limit --format=csv > "$OUT/card.txt" 2>&1
date -u >> "$OUT/card.txt"; cat "$here/about.txt" >> "$OUT/card.txt" 2>/dev/null
step() {
    name=$1; limit=$2; shift 2
    start=$(date +%s)
    # The step stays in the process group of this script, so that a signal to the group ends the step too.
    (cd "$work" && timeout --foreground -k 5 "$limit" "$@") > "$OUT/$name.txt" 2>&1
    echo "$name: exit $?, $(($(date +%s) - start)) s" | tee -a "$OUT/steps.txt"
}
# Prompts of one byte to hundreds of bytes. Chunks split them, and there are fewer seats than prompts.
prompts() {
    python3 - > "$work/prompts.txt" <<'P'
import random
random.seed(7)
for length in [1, 2, 17, 33, 64, 65, 100, 129, 250, 400, 511, 3, 700, 20, 90, 45]:
    print("".join(random.choice("abcdefghij klmnop") for _ in range(length)).strip() or "x")
P
}
# Greedy text of random checkpoints against candle's plain path in f32.
generate() {
    prompts
    for d in 64 128; do
        rm -rf "$work/tiny$d"
        step "make-tiny-$d" 20 ./generate make-tiny "$work/tiny$d" --head-dim $d
        step "generate-$d" 60 ./generate run "$work/tiny$d" --file prompts.txt -t 64 --check
        step "generate-$d-small" 60 ./generate run "$work/tiny$d" --file prompts.txt -t 64 --check \
            --chunk 64 --page 16 --seats 5
    done
}
# Text of the user's checkpoint, its comparison with candle's plain path, and its times.
text() {
    checkpoint=$(cd "${CHECKPOINT:?a folder with a checkpoint}" && pwd)
    step text 60 ./generate run "$checkpoint" -t 64 -p "The capital of France is" -p "Once upon a time" \
        -p "def fibonacci(n):" -p "Water boils at"
    prompts
    step text-check 90 ./generate run "$checkpoint" --file prompts.txt -t 64 --check --chunk 256 --page 16 --seats 8
    step text-times 90 ./generate bench "$checkpoint" --contexts 512,2048 --requests 32 --json "$OUT/text.json"
}
# Small Llamas: whole, resumed, with LoRA.
train() {
    rm -rf "$work/whole" "$work/lora"
    step train 60 ./train "$work/whole" --cuda --steps 100
    step train-resumed 60 ./train "$work/whole" --cuda --steps 120 --resume
    step train-lora 60 ./train "$work/lora" --cuda --steps 50 --from "$work/whole/checkpoint.safetensors" --lora 8
    cp "$work/whole/loss.svg" "$OUT/train.svg"
}
# The steps of a larger model, and those with plain attention.
train_full() {
    python3 - > "$work/long.txt" <<'P'
import random
random.seed(7)
print("".join(random.choice("abcdefghij klmnop\n") for _ in range(1 << 20)))
P
    sizes="--layers 8 --hidden 1024 --feed-forward 4096 --heads 16 --key-heads 4 --batch 4 --context 4096"
    for attention in flash plain; do
        rm -rf "$work/$attention"
        plain=$([ $attention = flash ] || echo --plain)
        step "train-$attention" 150 ./train "$work/$attention" --cuda --steps 30 --text long.txt $sizes $plain
    done
}
[ $# -eq 0 ] && set -- tests callers check gradients calls model generate train
for what in "$@"; do
    case "$what" in
        tests) step tests 120 ./flash_attn_tests --test-threads=1 ;;
        callers) step callers 90 ./callers --test-threads=1 ;;
        check) step check 150 ./candle-bench check ;;
        gradients) step gradients 60 ./training --include-ignored --test-threads=1 ;;
        calls) step calls 100 ./candle-bench calls --quick --out "$OUT/calls.json" ;;
        model) step model 150 ./candle-bench model --quick --out "$OUT/model.json" ;;
        calls-full) step calls-full 200 ./candle-bench calls --out "$OUT/calls-full.json" ;;
        model-full) step model-full 300 ./candle-bench model --out "$OUT/model-full.json" ;;
        generate) generate ;;
        generate-full) step generate-full 200 ./generate bench --json "$OUT/generate.json" --svg "$OUT/generate.svg" ;;
        train) train ;;
        train-full) train_full ;;
        text) text ;;
        *) echo "no step $what" >&2; exit 2 ;;
    esac
done
for name in tests callers check gradients; do [ ! -f "$OUT/$name.txt" ] || tail -n 4 "$OUT/$name.txt"; done
grep -h FAILED "$OUT"/*.txt | head -20
! grep -v "exit 0," "$OUT/steps.txt"
