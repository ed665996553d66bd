// Shows the evidence: `pack` of xtask/src/evidence.rs becomes the page's body. No library, no network.
"use strict";
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escape = (text) => String(text).replace(/[&<>"]/g, (sign) => ESCAPES[sign]);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const known = (value) => value !== null && value !== undefined;
const at = (row, path) =>
  path.split(".").reduce((value, key) => (known(value) ? value[key] : undefined), row);
const sum = (rows, key) => rows.reduce((all, row) => all + (row[key] ?? 0), 0);
const verdict = (passed) =>
  !known(passed) ? "no verdict" : passed ? '<b class="good">passed</b>' : '<b class="bad">FAILED</b>';

// A value as the text of a cell: numbers have `digits` digits after the point, or the form of a small number.
function text(value, digits) {
  if (!known(value)) return "";
  if (Array.isArray(value) && !value.some((item) => typeof item === "object")) {
    return value.map((item) => text(item, digits)).join(", ");
  }
  if (typeof value === "object") return JSON.stringify(value);
  if (typeof value !== "number") return String(value);
  if (digits === "small") return value.toExponential(1);
  return value.toFixed(digits ?? (Number.isInteger(value) ? 0 : 4));
}

// A table. A column is [heading, a field's path or a function of the row, digits]. A cell may be `{ html }`.
function table(columns, rows, title) {
  if (rows.length === 0) return "";
  const cell = (row, [, of, digits]) => {
    const value = typeof of === "function" ? of(row) : at(row, of);
    if (isObject(value) && "html" in value) return `<td>${value.html}</td>`;
    return `<td${typeof value === "number" ? ' class="number"' : ""}>${escape(text(value, digits))}</td>`;
  };
  const heads = columns.map(([heading]) => `<th>${escape(heading)}</th>`).join("");
  const body = rows.map((row) => `<tr>${columns.map((column) => cell(row, column)).join("")}</tr>`).join("");
  const inside = `<thead><tr>${heads}</tr></thead><tbody>${body}</tbody>`;
  const closed = `<div class="scroll" tabindex="0"><table>${inside}</table></div>`;
  return title ? `<details><summary>${escape(title)}</summary>${closed}</details>` : closed;
}

// Any JSON: lists of objects become tables, objects become lists of names and values.
function generic(data) {
  if (Array.isArray(data) && data.length > 0 && data.every(isObject)) {
    const columns = [...new Set(data.flatMap(Object.keys))].map((key) => [key, (row) => row[key]]);
    return table(columns, data, data.length > 24 ? `${data.length} rows` : "");
  }
  if (!isObject(data)) return `<p>${escape(text(data))}</p>`;
  const nested = (value) => isObject(value) || (Array.isArray(value) && value.some(isObject));
  const item = ([key, value]) =>
    `<dt>${escape(key)}</dt><dd>${nested(value) ? generic(value) : escape(text(value))}</dd>`;
  return `<dl>${Object.entries(data).map(item).join("")}</dl>`;
}

// What each kind of file shows.
function verify(data) {
  const [headline, kernels] = [data.headline ?? [], data.kernels ?? []];
  const error = ["largest error", (row) => row.max_error ?? "not finite", "small"];
  const own = table([["configuration", "name"], ["mask", "mask"], ["cases", "cases"], error], headline);
  const columns = [
    ["kernel", "name"],
    ["cases", "cases"],
    ["worst error / allowed", "worst_ratio", 3],
  ];
  const all = table(
    [...columns, ["skipped", "skipped"]],
    kernels,
    `${kernels.length} kernels on their test problems`,
  );
  const cases = sum(headline, "cases") + sum(kernels, "cases");
  return `<p>${verdict(data.passed)}: ${cases} cases</p>${own}${all}`;
}
function compare(data) {
  const most = Math.max(...data.rows.map((row) => row.tflops ?? 0));
  const bar = (row) => {
    const own = row.peer === "ferroflash" ? ' class="own"' : "";
    return { html: `<i${own} style="width:${(((row.tflops ?? 0) / most) * 12).toFixed(1)}rem"></i>` };
  };
  const shape = [
    ["shape", "label"],
    ["suite", "suite"],
    ["timing", "timing"],
    ["library", "peer"],
  ];
  return table(
    [...shape, ["us", "us", 1], ["TFLOP/s", "tflops", 1], ["", bar]],
    data.rows,
    `${data.rows.length} rows`,
  );
}
function base(data) {
  const key = (row) => ["label", "timing", "suite", "entry"].map((key) => row[key]).join();
  const own = new Map(data.rows.filter((row) => row.peer === "ferroflash").map((row) => [key(row), row.us]));
  const columns = [
    ["shape", "label"],
    ["timing", "timing"],
    ["us", (row) => own.get(key(row)), 1],
  ];
  const rows = data.rows.filter((row) => row.peer === "base");
  return table([...columns, ["before", "us", 1], ["times as fast", "ratio", 3]], rows);
}
function lineage(data) {
  const columns = [
    ["kernel", "kernel"],
    ["configuration", "configuration"],
    ["batch", "batch"],
    ["mask", "mask"],
  ];
  const times = [
    ["us", "us", 2],
    ["times FlashAttention-2's speed", "times_fa2", 2],
  ];
  const rows = [...data.rows].sort((a, b) => a.us - b.us);
  return table([...columns, ...times, ["largest error", "error", "small"]], rows, `${rows.length} rows`);
}
function program(data) {
  const said = (data.said ?? []).map(escape).join("\n");
  return `<p>${verdict(data.passed)}: ${escape(data.program)}</p><pre>${said}</pre>`;
}
function shim(data) {
  const small = [
    ["error", "error"],
    ["allowed", "tolerance"],
    ["SDPA's error", "sdpa_error"],
  ];
  const columns = [["case", "name"], ...small.map((column) => [...column, "small"])];
  const passed = ["verdict", (row) => (row.passed ? "passed" : "WRONG")];
  return `<p>${verdict(data.passed)}</p>${table([...columns, passed], data.cases)}`;
}
function agree(data) {
  const products = table(
    ["dtype", "elements", "differing"].map((key) => [key, key]),
    data.products ?? [],
  );
  const columns = [
    ["kernel", "name"],
    ["words", "words"],
    ["differing", "differing"],
    ["O, ulps", "o_ulps", 1],
  ];
  const kernels = data.kernels ?? [];
  const all = table([...columns, ["LSE / allowed", "lse_ratio", 3]], kernels, `${kernels.length} kernels`);
  return `<p>${verdict(data.agree)}</p>${products}${all}`;
}
function bench(data) {
  const predicted = (row) => row.predicted_us && row.predicted_us.map((us) => us.toFixed(1)).join(" to ");
  const columns = [
    ["shape", "shape"],
    ["timing", "timing"],
    ["p50 us", "p50_us", 1],
    ["p90 us", "p90_us", 1],
  ];
  const rates = [
    ["TFLOP/s", "tflops", 1],
    ["GB/s", "gb_per_s", 0],
    ["SM MHz", "sm_mhz", 0],
  ];
  return table([...columns, ...rates, ["predicted us", predicted], ["kernel", "entry"]], data.rows ?? []);
}
function report(data) {
  const about = [
    ["display driver", "driver"],
    ["compute capability", "limits.compute_capability"],
    ["multiprocessors", "limits.sms"],
    ["before", "clocks.0"],
    ["after", "clocks.1"],
    ["first call, ms", "first_call.total_ms"],
    ["measured over predicted, geomean", "model.geomean"],
  ].map(([name, path]) => [name, at(data, path)]);
  const missing = (data.missing ?? []).length > 0 ? `<p>Missing: ${escape(data.missing.join("; "))}</p>` : "";
  const top = table(
    [
      ["", "0"],
      ["", "1"],
    ],
    about.filter(([, value]) => known(value)),
  );
  return top + verify(data.verify ?? {}) + bench(data.bench ?? {}) + missing;
}
function sweep(data) {
  const ours = [
    ["the table's", "table"],
    ["us", "table_microseconds", 1],
    ["timed", (row) => row.candidates.length],
  ];
  return table(
    [["problem", "problem"], ["fastest", "best"], ["us", "microseconds", 1], ...ours],
    data.shapes,
  );
}
function sanitize(data) {
  const all = data.kernels ?? [];
  // Only the simulator has schedules. On a GPU, a row is a tool for all kernels.
  const isGpu = !known(data.schedules);
  const count = (row, is) => (row.kernels ?? []).filter(is).length;
  const found = (row) =>
    row.findings.map((finding) => `${finding.kind}: ${finding.message}`).join("; ") || "none";
  const columns = [[isGpu ? "tool" : "kernel", "name"]];
  if (isGpu) columns.push(["kernels", (row) => count(row, (kernel) => kernel.cases > 0)]);
  columns.push(["launches", "launches"], ["findings", found]);
  columns.push(
    isGpu ? ["kernels skipped", (row) => count(row, (kernel) => kernel.skipped)] : ["skipped", "skipped"],
  );
  const findings = all.reduce((sum, row) => sum + row.findings.length, 0);
  const said = `${verdict(data.clean)}: ${sum(all, "launches")} launches, ${findings} findings`;
  return `<p>${said}</p>${table(columns, all, `${all.length} ${isGpu ? "tools" : "kernels"}`)}`;
}
function soak(data) {
  const kib = (key) => (row) => (known(row[key]) ? Math.trunc(row[key] / 1024) : "unknown");
  const growth = [
    ["device KiB", kib("device_growth_bytes")],
    ["process KiB", kib("process_growth_bytes")],
  ];
  const columns = [["kernel", "name"], ["launches", "launches"], ["differing", "differing"], ...growth];
  const said = `${sum(data.kernels, "launches")} launches, ${sum(data.kernels, "differing")} differ`;
  const kernels = table(columns, data.kernels, `${data.kernels.length} kernels`);
  return `<p>${verdict(data.passed)}: ${said}</p>${kernels}`;
}
function fuzz(data) {
  const failure = data.failure ?? data.error;
  const wide = known(data.wide_rows)
    ? `; of problems of any magnitude, ${data.rows_not_judged} of ${data.wide_rows} rows are not judged`
    : "";
  const said = `${data.solved} random problems solved in ${text(data.seconds, 0)} s${wide}`;
  const refused = table(
    [
      ["fault", "0"],
      ["refused by name", "1"],
    ],
    Object.entries(data.refused ?? {}),
    "Refusals",
  );
  const bad = failure ? `<p class="bad">${escape(failure)}</p>` : "";
  return `<p>${verdict(data.passed)}: ${said}</p>${bad}${refused}`;
}
function figures(data) {
  const spilling = data.filter((row) => row.spills !== "0/0").length;
  const columns = [
    ["kernel", "entry"],
    ["target", "target"],
    ["registers", "registers"],
  ];
  columns.push(
    ["shared memory, bytes", "smem_bytes"],
    ["spill stores/loads, bytes", "spills"],
    ["main loop", "main_loop"],
  );
  const all = table(columns, data, "All of them");
  return `<p>${data.length} kernels on their targets: ${spilling} spill.</p>${all}`;
}

// The page: the parts whose files have the part's name at the start of theirs.
function page(pack) {
  const partOf = (file) => PARTS.find(([name]) => file.path.split("/").pop().startsWith(name));
  const folder = (file) => file.path.split("/").slice(0, -1).join("/");
  const runOf = (file) => pack.runs[folder(file)] ?? {};
  const source = (file) =>
    ["device", "commit", "date"].map((key) => file.data[key] ?? runOf(file)[key]).filter(known);
  const piece = (file, content) => {
    const notes = [file.data.note, runOf(file).note]
      .filter(known)
      .map((note) => `<p>${escape(note)}</p>`)
      .join("");
    const commands = (runOf(file).commands ?? []).map((command) => `${escape(command)}\n`).join("");
    const folded = commands && `<details><summary>Commands</summary><pre>${commands}</pre></details>`;
    const head = `<h3>${escape(file.path)}</h3><p class="source">${escape(source(file).join(", "))}</p>`;
    return `<article>${head}${notes}${content}${folded}</article>`;
  };
  const isPlot = (file) => file.path.endsWith(".svg");
  const data = pack.files.filter((file) => !isPlot(file));
  const section = (id, title, about, inside) =>
    `<section id="${id}"><h2>${escape(title)}</h2>${about}${inside}</section>`;
  const shown = (files, show) => files.map((file) => piece(file, show(file.data))).join("");
  const of = new Map(PARTS.map(([name]) => [name, data.filter((file) => partOf(file)?.[0] === name)]));
  const sections = PARTS.map(([name, title, about, show]) => {
    const how = name === "ptx-stats" ? "cargo xtask bless" : "a command of docs/evidence/README.md";
    const missing = `<p class="missing">Missing. It is made by ${how}</p>`;
    return section(name, title, `<p>${escape(about)}</p>`, shown(of.get(name), show) || missing);
  }).join("");
  const plots = pack.files
    .filter(isPlot)
    .map((file) => {
      const svg = file.data.slice(file.data.indexOf("<svg")); // An XML prolog must not stand inside a page.
      return piece({ path: file.path, data: {} }, `<figure>${svg}</figure>`);
    })
    .join("");
  const others = shown(
    data.filter((file) => !partOf(file)),
    generic,
  );
  const contents = PARTS.map(([name, title]) => {
    const missing = of.get(name).length === 0 ? " <span>missing</span>" : "";
    return `<li><a href="#${name}">${escape(title)}</a>${missing}</li>`;
  }).join("");
  const found = PARTS.filter(([name]) => of.get(name).length > 0).length;
  const about = `Fused attention for NVIDIA GPUs, every kernel written in Rust. Made from commit
    <code>${escape(pack.commit)}</code>; ${found} of ${PARTS.length} parts are here. The data is beside this
    page in <code>evidence.json</code>.`;
  const head = `<header><h1>FerroFlash: evidence</h1><p>${about}</p><nav><ul>${contents}</ul></nav></header>`;
  const last =
    (plots && section("plots", "Plots", "", plots)) + (others && section("other", "More", "", others));
  return `${head}<main>${front(of, runOf, source)}${sections}${last}</main>`;
}
