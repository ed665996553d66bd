#!/bin/sh
# Writes the GPU machine's part of docs/evidence. Each call takes less than ten minutes and builds nothing. In the packed folder:
#   ./evidence.sh list                 list the calls: name, time limit, outputs, needs
#   ./evidence.sh run NAME .. OUT      make these calls, `all` of them for NAME; a repeated call replaces its earlier outputs
#   ./evidence.sh dry OUT              test the script in the simulator, in a minute: no GPU, no Python
#   ./evidence.sh part NAME            print the kernels of a part, such as `cache`
#   ./evidence.sh pack OUT FILE        pack OUT as .tar.gz; unpack it in docs/evidence/DEVICE
# On a machine of several GPUs, each GPU makes one call at a time, on its share of the cores. Several machines
# may fill one OUT. The exit code is the number of failed commands, including calls that lack what they need or did not
# begin; after an error in the arguments, it is 2. SIGINT or SIGTERM to this script ends the calls with the results that
# they have, within a minute.
#
#   GPUS=N                             the number of GPUs [default: all]
#   COMMIT=ID                          [default: the commit in about.txt, which gpu-pack writes]
#   PEER_TESTS=FILE                    FlashAttention's tests/test_flash_attn.py
#   FLASHINFER_TESTS=FOLDER            the folder that has FlashInfer's tests/
#   FLASHMLA_TESTS=FOLDER              FlashMLA's folder tests/
#   CANDLE=FOLDER                      candle-pack, which `cargo xtask candle gpu-pack` makes
#   BASE=FOLDER                        another commit's packed folder
#   OWN=FOLDER                         the folder that `cargo xtask gpu-pack --own` makes
#   SECONDS_OF_CALL=N                  end calls after N seconds, to try them; 70 to 999
#   SOAK_LAUNCHES=100                  launches per round of soak
set -u

. "$(dirname "$0")/calls.sh"
# The package `ferroflash`, with the library.
PYTHONPATH=$(cd "$(dirname "$0")" && pwd)/python${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH

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

# Ends a call that lacks a program, a Python package or a caller's packed folder. compare.py does without FlashAttention-3 and -4 (fa3, fa4).
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

# Repeats a signal (0: none) until a process group has ended. After the given seconds, ends the group by SIGKILL.
until_ended() {
    left=$((5 * $3))
    while kill -s "$2" -- "-$1" 2> /dev/null && [ $((left -= 1)) -gt 0 ]; do sleep 0.2; done
    kill -s KILL -- "-$1" 2> /dev/null
}

# The trap of a call: asks the program that runs to end after its report. `timeout` may have yet to make the program's
# group; `made` repeats its signal until the call has ended. A second SIGTERM would end the program without its report.
ended() {
    ended=yes
    [ -z "$running" ] || [ "$asked" = "$running" ] || ! kill -s TERM -- "-$running" 2> /dev/null || asked=$running
}

# Runs a command with its time limit. `timeout` and the command are a process group of their own.
timed() {
    began=yes
    timeout -k 25 "$limit" "$@" &
    running=$!
    wait "$running"
    status=$?
    # Each signal ends a `wait`.
    while kill -s 0 "$running" 2> /dev/null; do
        wait "$running"
        status=$?
    done
    # A program may leave others behind, such as the steps of a shell script. They have 25 s more to report.
    # `timeout` returns 124 or more at the time limit.
    if [ -n "$ended" ] || [ "$status" -ge 124 ]; then
        kill -s TERM -- "-$running" 2> /dev/null && until_ended "$running" 0 25
    fi
    running=
    return "$status"
}

# Prints a command line as a user would type it, with one kernel for many.
shown() {
    echo "$*" | sed "s|--config .*--config [^ ]*|--config NAME ..|; s|$out/||g; s|$out|.|g; s|${base:-/none}|BASE|g; s|${tests:-/none}|TESTS|g; s|${infer:-/none}|TESTS|g; s|${candle:-/none}|CANDLE|g; s|${own:-/none}|OWN|g; s|^env ||"
}

# Runs a command with its time limit, and notes its command line. `began` says whether the command has begun; if not, a
# signal came first, and the earlier outputs stay.
run() {
    shown=$(shown "$@") start=$(date +%s) began=''
    echo "== $shown" >&2
    # On SIGTERM, a program reports the results that it has.
    [ -z "$ended" ] && timed "$@" || { failed=$((failed + 1)); shown="$shown (FAILED)"; }
    echo "== $(($(date +%s) - start)) s: $shown" >&2
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
    run "$@" > "$file.part"
    [ -z "$began" ] || mv "$file.part" "$file"
    rm -f "$file.part"
    [ -s "$file" ] || rm -f "$file"
}

# Writes program-NAME.json: whether a program passed, and its output.
said() {
    printf '{"program": "%s", "passed": %s, "said": [\n%s\n]}\n' "$1" "$2" "$(quoted < "$3")" \
        > "$out/program-$1.json"
}

# Runs a program that passes or fails, and keeps its output in program-NAME.json.
program() {
    name=$1 before=$failed
    shift
    goes_on "$@" || return
    run "$@" > "$out/$name.said" 2>&1
    passed=$([ "$failed" = "$before" ] && echo true || echo false)
    [ -z "$began" ] || said "$name" "$passed" "$out/$name.said"
    cat "$out/$name.said" >&2
    rm "$out/$name.said"
}

# Prints the commit of this folder.
commit() {
    commit=${COMMIT:-$(sed -n 's/^commit //p' about.txt 2> /dev/null)}
    echo "${commit:-unknown}"
}

# Writes the machine, date and commands of this run, and of earlier calls that this run did not repeat.
# Several runs may fill one folder at once: a subshell holds the lock.
about() (
    trap '' TERM INT HUP
    exec 9> "$out/.lock"
    flock 9
    touch "$out/commands.txt"
    # If a call ran again, the new line `NAME: command` replaces the old one.
    awk -F': ' 'FILENAME == ARGV[1] { again[$1] = 1; next } !($1 in again)' "$COMMANDS" "$out/commands.txt" > "$COMMANDS.old"
    cat "$COMMANDS.old" "$COMMANDS" > "$out/commands.txt"
    rm "$COMMANDS.old" "$COMMANDS"
    device="no GPU"
    if command -v nvidia-smi > /dev/null; then
        device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader -i 0 | sed 's/, /, driver /')
    fi
    cat > "$out/run.json" << END
{"device": "$device", "commit": "$(commit)", "date": "$(date -u +%Y-%m-%d)", "commands": [
$(sed 's/^[^:]*: //' "$out/commands.txt" | quoted)
]}
END
)

# Makes one call. The exit code says whether a command failed.
one() {
    call=$1 tests=${PEER_TESTS:-} infer=${FLASHINFER_TESTS:-} latents=${FLASHMLA_TESTS:-}
    base=${BASE:-} candle=${CANDLE:-} own=${OWN:-}
    limit=$(column "$call" 2)
    # Dry runs have no line in the table.
    : "${limit:=570}"
    [ "${SECONDS_OF_CALL:-999}" -gt "$limit" ] || limit=$SECONDS_OF_CALL
    failed=0 ended='' running='' asked='' peers="fa2 cudnn fa3 fa4"
    # Whoever ends all processes of a job sends SIGTERM to this one too.
    trap ended URG TERM INT HUP
    has
    call
    exit $((failed > 0))
}

# Ends xargs, which begins no more calls. `made` then ends the calls.
end_calls() {
    ended=yes
    [ -z "$running" ] || kill -s TERM "$running" 2> /dev/null
}

# Makes the calls: each GPU takes a call when it has made its last one, and uses its share of the cores.
made() {
    PEER_TESTS=$(whole "${PEER_TESTS:-}") || exit 2
    FLASHINFER_TESTS=$(whole "${FLASHINFER_TESTS:-}") || exit 2
    FLASHMLA_TESTS=$(whole "${FLASHMLA_TESTS:-}") || exit 2
    BASE=$(whole "${BASE:-}") || exit 2
    CANDLE=$(whole "${CANDLE:-}") || exit 2
    OWN=$(whole "${OWN:-}") || exit 2
    export PEER_TESTS FLASHINFER_TESTS FLASHMLA_TESTS BASE CANDLE OWN
    # The Python programs start ./ferroflash.
    cd "$(dirname "$0")" || exit 2
    [ -x ./ferroflash ] || die "no ./ferroflash here: run evidence.sh of a folder that \`cargo xtask gpu-pack\` made"
    case $GPUS in
        '' | 0 | *[!0-9]*) die "GPUS=$GPUS: a number of GPUs, at least 1" ;;
    esac
    cores=$(($(nproc) / GPUS))
    # Some calls need 60 seconds to start and to report.
    case ${SECONDS_OF_CALL:-70} in
        [7-9][0-9] | [1-9][0-9][0-9]) ;;
        *) die "SECONDS_OF_CALL=$SECONDS_OF_CALL: a number of seconds, from 70 to 999" ;;
    esac
    [ "$cores" -gt 0 ] || die "GPUS=$GPUS: this machine has $(nproc) cores; at least one for each GPU"
    # One folder is the evidence of one commit.
    other=$(sed -n 's/.*"commit": "\([^"]*\)".*/\1/p' "$out/run.json" 2> /dev/null)
    [ "${other:-$(commit)}" = "$(commit)" ] \
        || die "$out has the results of commit $other, and this program is commit $(commit); name another folder"
    export COMMANDS="$out/commands.$$"
    : > "$COMMANDS"
    # If this script is ended, its calls end too, with the results that they have.
    running='' ended=''
    trap end_calls TERM INT HUP
    # Another run of another commit must find this commit.
    about
    : > "$COMMANDS"
    printf '%s\n' "$@" | GPUS=$GPUS setsid xargs -P "$GPUS" --process-slot-var=SLOT -I NAME sh -c '
        [ "$GPUS" = 1 ] && exec sh ./evidence.sh one "$2" "$3"
        export CUDA_VISIBLE_DEVICES=$SLOT
        exec taskset -c "$((SLOT * $1))-$((SLOT * $1 + $1 - 1))" sh ./evidence.sh one "$2" "$3"' \
        - "$cores" NAME "$out" &
    # Until `setsid` has made the group, a signal would be lost.
    until kill -s 0 -- "-$!" 2> /dev/null || ! kill -s 0 "$!" 2> /dev/null; do sleep 0.1; done
    running=$!
    [ -z "$ended" ] || end_calls
    wait "$running"
    # A signal ends the first `wait`. It also ends xargs, whose calls have yet to report; each takes 50 s at most.
    wait "$running" 2> /dev/null
    # The helpers of a call, such as sed, ignore SIGURG.
    until_ended "$running" URG 60
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
        [ -f "$2/run.json" ] || die "$2 has no run.json: name the OUT of a run"
        tar -czf "$3" --exclude=.lock --exclude='*.part' -C "$2" .
        ;;
    *) die "usage: $0 list | run NAME .. OUT | dry OUT | part NAME | pack OUT FILE" ;;
esac
