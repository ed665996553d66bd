#!/bin/sh
# Opens target/evidence/index.html, which `cargo xtask evidence` makes, in headless Chromium at 1280 and 390 pixels. Only elements
# with their own scroll bar may be wider than the page. Takes pictures of both widths, light and dark, into target/page. ci does not
# run this: it has no browser.
#
#     tests/page/check.sh [chromium]
set -eu
browser=${1:-chromium}
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$root/target/page
mkdir -p "$out"
cp "$root/target/evidence/index.html" "$root/tests/page/measure.html" "$out"
python3 -m http.server 8765 --directory "$out" > "$out/server.log" 2>&1 &
server=$!
trap 'kill $server' EXIT
sleep 1
page=http://localhost:8765
run() { "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars "$@" 2> /dev/null; }
for width in 1280 390; do
    run --window-size=$width,2400 --screenshot="$out/light-$width.png" $page/index.html
    run --window-size=$width,2400 --blink-settings=preferredColorScheme=0 --screenshot="$out/dark-$width.png" $page/index.html
done
run --virtual-time-budget=20000 --dump-dom $page/measure.html > "$out/measured.html"
grep -o 'at [0-9]* pixels: [^<]*' "$out/measured.html"
[ "$(grep -c 'pixels: fits' "$out/measured.html")" = 2 ]
