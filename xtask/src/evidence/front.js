// The head of the page: eight numbers and six plots of the newest files, for a reader with ten seconds.
"use strict";
// A line chart. Lengths double from mark to mark. A line is { name, own, points: [[x, y]] }.
const [LEFT, TOP, WIDTH, HEIGHT] = [48, 10, 320, 180];
const DASHES = ["none", "6 3", "2 3", "8 3 2 3"]; // Lines differ even without colours.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return (
    [1, 1.6, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((rounded) => rounded >= value) ??
    10 * power
  );
}
function short(value) {
  if (value >= 1024 && value % 1024 === 0) return `${value / 1024}k`;
  if (value >= 1000) return `${(value / 1000).toFixed(value >= 10000 ? 0 : 1)}k`;
  return value >= 10 ? value.toFixed(0) : String(Number(value.toFixed(2)));
}
function chart(heading, lines) {
  const points = lines.flatMap((line) => line.points);
  if (points.length === 0) return "";
  const lengths = [...new Set(points.map(([length]) => length))].sort((a, b) => a - b);
  const most = roundUp(Math.max(...points.map(([, value]) => value)));
  const span = Math.log2(lengths[lengths.length - 1] / lengths[0]) || 1;
  const x = (length) => (LEFT + (Math.log2(length / lengths[0]) / span) * WIDTH).toFixed(1);
  const y = (value) => (TOP + HEIGHT - (value / most) * HEIGHT).toFixed(1);
  let drawn = [0, 1, 2, 3, 4]
    .map((tick) => (most * tick) / 4)
    .map(
      (value) =>
        `<path class="grid" d="M${LEFT} ${y(value)}h${WIDTH}"/>` +
        `<text x="${LEFT - 5}" y="${Number(y(value)) + 4}" class="left">${short(value)}</text>`,
    )
    .join("");
  drawn += lengths.map((l) => `<text x="${x(l)}" y="${TOP + HEIGHT + 16}">${short(l)}</text>`).join("");
  const counts = { true: 0, false: 0 };
  const names = lines
    .filter((line) => line.points.length > 0)
    .map(({ name, own, points }) => {
      const sorted = [...points].sort((a, b) => a[0] - b[0]);
      const kind = `class="line${own ? " own" : ""}"`;
      const stroke = `${kind} stroke-dasharray="${DASHES[counts[own]++ % DASHES.length]}"`;
      drawn += `<polyline ${stroke} points="${sorted.map(([l, v]) => `${x(l)},${y(v)}`).join(" ")}"/>`;
      drawn += sorted
        .map(
          ([l, v]) =>
            `<circle ${kind} cx="${x(l)}" cy="${y(v)}" r="3"><title>${escape(name)}, ` +
            `${short(l)}: ${short(v)}</title></circle>`,
        )
        .join("");
      return `<li><svg viewBox="0 0 24 8"><path ${stroke} d="M0 4h24"/></svg>${escape(name)}</li>`;
    })
    .join("");
  const svg = `<svg viewBox="0 0 380 214" role="img">${drawn}</svg>`;
  return `<div class="plot"><h4>${escape(heading)}</h4>${svg}<ul>${names}</ul></div>`;
}

const PEERS = [
  ["ferroflash", "FerroFlash"],
  ["fa2", "FlashAttention-2"],
  ["cudnn", "cuDNN"],
  ["fa4", "FlashAttention-4"],
];
const SIDES = [
  ["ours", "FerroFlash"],
  ["theirs", "candle-flash-attn"],
  ["plain", "candle's plain path"],
];
// The suites with points of the plots. If several suites have a point, the first of them counts.
const CURVES = ["prefill-curve", "prefill", "hopper"];
const TOKENS = 16384; // queries in all sequences of a point

function means(ratios) {
  const geomean = Math.exp(ratios.reduce((sum, ratio) => sum + Math.log(ratio), 0) / ratios.length);
  return {
    value: `${geomean.toFixed(2)}×`,
    says: `${ratios.length} problems, lowest ratio ${Math.min(...ratios).toFixed(2)}`,
  };
}
// The ratios of a suite to a peer in f16, with a cold L2 cache if there are any.
function ratio(file, suite, peer, what) {
  const isMeant = (row) => row.suite === suite && row.peer === peer && !String(row.label).includes("bf16");
  const all = (file.data.rows ?? []).filter(isMeant);
  const cold = all.filter((row) => row.timing === "cold");
  const ratios = (cold.length > 0 ? cold : all).map((row) => row.ratio).filter(known);
  if (ratios.length === 0) return undefined;
  const { value, says } = means(ratios);
  const name = PEERS.find(([key]) => key === peer)?.[1] ?? "FlashAttention-2";
  return { value, says: `against ${name}: ${what}; ${says}` };
}
function calls(file) {
  const ratios = (file.data.calls ?? [])
    .filter((row) => row.theirs_us && row.ours_us)
    .map((r) => r.theirs_us / r.ours_us);
  if (ratios.length === 0) return undefined;
  const { value, says } = means(ratios);
  return { value, says: `against candle-flash-attn, per call: ${says}` };
}
const rate = (row, side) => row[`${side}_ms`] && ((row.tokens ?? row.batch) / row[`${side}_ms`]) * 1e3;
function model(file) {
  const of = [file.data.model].flat()[0] ?? {};
  return (of.name ?? "a model") + (of.parameters ? `, ${(of.parameters / 1e9).toFixed(1)}e9 parameters` : "");
}
function tokensPerSecond(file, key, isMeant) {
  const row = (file.data[key] ?? []).find(isMeant);
  if (!row || !rate(row, "ours")) return undefined;
  const what = row.context
    ? `decoding, ${row.batch} sequences of ${row.context} tokens`
    : `prefill of ${row.tokens} tokens`;
  const others = SIDES.slice(1)
    .filter(([side]) => rate(row, side))
    .map(([side, name]) => `${(rate(row, "ours") / rate(row, side)).toFixed(2)} times the rate of ${name}`);
  return {
    value: rate(row, "ours").toFixed(0),
    says: `tokens per second, ${model(file)}, ${what}; ${others.join(", ")}`,
  };
}

function prefill(files, headDim, causal, heads) {
  const isMeant = (row) =>
    row.head_dim === headDim &&
    row.causal === causal &&
    row.dtype === "f16" &&
    !row.window &&
    row.heads_q === heads &&
    row.heads_k === heads &&
    row.seqlen_q === row.seqlen_k &&
    row.batch * row.seqlen_q === TOKENS &&
    known(row.tflops);
  const rows = files.flatMap((file) => file.data.rows ?? []).filter(isMeant);
  const of = (peer) => [
    ...new Map(
      [...CURVES]
        .reverse()
        .flatMap((suite) =>
          rows
            .filter((row) => row.suite === suite && row.peer === peer)
            .map((row) => [row.seqlen_q, row.tflops]),
        ),
    ),
  ];
  const lines = PEERS.map(([peer, name]) => ({ name, own: peer === "ferroflash", points: of(peer) }));
  const mask = causal ? "causal" : "full";
  return chart(`Prefill: TFLOP/s by length (f16, ${mask}, head dim ${headDim}, 16k tokens)`, lines);
}
function decoding(file) {
  const of = (name, suite, kind, key, own) => {
    const label = new RegExp(`^B16 K(\\d+) ${kind}$`);
    const rows = (file.data.rows ?? []).filter(
      (row) => row.suite === suite && row.timing === "cold" && known(row[key]),
    );
    return {
      name,
      own,
      points: rows.map((row) => [Number(label.exec(row.label)?.[1]), row[key]]).filter(([k]) => k > 0),
    };
  };
  return chart("Decoding: microseconds by context (16 sequences, 32 heads on 8, L2 cold)", [
    of("FerroFlash", "decode", "f16, dense", "us", true),
    of("cuDNN", "decode", "f16, dense", "peer_us", false),
    of("FlashAttention-2", "decode-fa2", "f16, dense", "peer_us", false),
    of("FerroFlash, e4m3", "e4m3", "f16, e4m3", "us", true),
  ]);
}
function tokens(file) {
  const rows = file.data.decode ?? [];
  const contexts = (batch) => rows.filter((row) => row.batch === batch).length;
  const [batch] = [...new Set(rows.map((row) => row.batch))].sort(
    (a, b) => contexts(b) - contexts(a) || b - a,
  );
  const points = (side) =>
    rows.filter((row) => row.batch === batch && rate(row, side)).map((r) => [r.context, rate(r, side)]);
  const lines = SIDES.map(([side, name]) => ({ name, own: side === "ours", points: points(side) }));
  return chart(`End to end: tokens per second by context (${model(file)}, batch ${batch})`, lines);
}

function front(of, runOf, source) {
  const folder = (file) => file.path.split("/").slice(0, -1).join("/");
  const date = (file) => file.data.date ?? runOf(file).date ?? "";
  // The files of a part in the folder of the newest file.
  const newest = (part) => {
    const [last] = [...of.get(part)].sort((a, b) => date(b).localeCompare(date(a)));
    return of.get(part).filter((file) => folder(file) === folder(last));
  };
  const [compare, serving, candle] = ["compare", "serving", "candle"].map(newest);
  const first = (files, make) => files.map((file) => [make(file), file]).find(([made]) => made);
  const small = (file) => {
    const command = file.data.command ?? runOf(file).command;
    const code = command ? ` <code>${escape(command)}</code>` : "";
    return `<small>${escape(source(file).join(", "))}${code}</small>`;
  };
  const prefilled = "prefill, f16, L2 cold, 2048 to 16384 positions";
  const decoded = "decoding, f16, dense caches, L2 cold";
  const tiles = [
    first(compare, (file) => ratio(file, "prefill", "fa2", prefilled)),
    first(compare, (file) => ratio(file, "prefill", "cudnn", prefilled)),
    first(serving, (file) => ratio(file, "decode", "cudnn", decoded)),
    first(serving, (file) => ratio(file, "decode-fa2", "fa2", decoded)),
    first(serving, (file) => ratio(file, "packed", "fa2 varlen", "varlen batches")),
    first(candle, calls),
    first(candle, (file) => tokensPerSecond(file, "prefill", (row) => row.tokens === 4096)),
    first(candle, (file) =>
      tokensPerSecond(file, "decode", (row) => row.context === 8192 && row.batch === 8),
    ),
  ]
    .filter(known)
    .map(([{ value, says }, file]) => `<li><b>${value}</b> ${escape(says)}${small(file)}</li>`)
    .join("");
  const curve = CURVES.map((suite) =>
    compare.find((f) => (f.data.rows ?? []).some((r) => r.suite === suite)),
  ).find(known);
  const shapes = [
    [64, false, 32],
    [64, true, 32],
    [128, false, 16],
    [128, true, 16],
  ];
  const plots = shapes.map((shape) => [prefill(compare, ...shape), curve]);
  plots.push(...[first(serving, decoding), first(candle, tokens)].filter(known));
  const drawn = plots
    .filter(([plot]) => plot)
    .map(([plot, file]) => `<figure>${plot}${small(file)}</figure>`)
    .join("");
  if (!tiles && !drawn) return "";
  const what = "The other library's time divided by FerroFlash's time: above 1, FerroFlash is faster.";
  return `<section id="front"><h2>In ten seconds</h2><p>${what}</p><ul class="numbers">${tiles}</ul>
    <div class="plots">${drawn}</div></section>`;
}
