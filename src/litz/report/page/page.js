"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const CHUNK = 200, AROUND = 3;
  const lines = new Map(data.lines.map((l) => [l.id, l]));
  const kernels = new Map(data.kernels.map((k) => [k.id, k]));
  const stepsOf = new Map();
  const steps = data.graphs.flatMap((g) => g.steps);
  const graphOf = new Map(data.graphs.flatMap((g) => g.steps.map((s) => [s.id, g])));
  for (const s of steps)
    for (const l of s.lines) stepsOf.has(l) ? stepsOf.get(l).push(s) : stepsOf.set(l, [s]);

  const make = (tag, text, attributes = {}, ...inside) => {
    const e = document.createElement(tag);
    if (text) e.textContent = text;
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    e.append(...inside);
    return e;
  };
  const size = (n, unit = "B") => {
    let i = 0;
    for (; Math.abs(n) >= 1000 && i < 5; i++) n /= 1000;
    return `${i && n < 100 ? n.toFixed(1) : n.toFixed(0)} ${["", "k", "M", "G", "T", "P"][i]}${unit}`;
  };
  const time = (t) =>
    t >= 1 ? `${t.toFixed(2)} s` : t >= 1e-3 ? `${(t * 1e3).toFixed(2)} ms` : `${(t * 1e6).toFixed(1)} us`;
  const short = (id) => {  // a module's line has number 0
    const l = lines.get(id);
    return !l ? "" : l.number ? `${l.file.split("/").pop()}:${l.number}` : l.file;
  };
  const anchor = (id) => `line-${id}`;
  const said = document.getElementById("said");
  const block = (text) => make("pre", text, { tabindex: "0" });  // keys scroll it, too
  const lazily = (title, fill) => {  // what is closed costs nothing
    const d = make("details", "", {}, make("summary", title));
    d.addEventListener("toggle", () => { if (d.open && d.children.length === 1) d.append(...fill()); });
    return d;
  };

  // --- lighting up: sets of lines and steps that belong together ---------------------------------
  const source = document.getElementById("source"), rows = document.getElementById("rows");
  let lit = [];
  const light = (lineIds, stepIds, from) => {
    lit.forEach((e) => e.classList.remove("lit"));
    const [ofLines, ofSteps] = [lineIds.map(anchor), stepIds].map((ids) =>
      ids.map((id) => document.getElementById(id)).filter(Boolean));
    lit = [...ofLines, ...ofSteps];
    lit.forEach((e) => e.classList.add("lit"));
    if (from !== source) reveal(source, ofLines);
    if (from !== rows) reveal(rows, ofSteps);
  };
  const reveal = (pane, some) => {  // the page itself stays where it is
    const [top, ...rest] = some.map((e) => e.getBoundingClientRect());
    const own = pane.getBoundingClientRect();
    if (!top || [top, ...rest].some((r) => r.top >= own.top && r.bottom <= own.bottom)) return;
    pane.scrollTop += top.top - own.top - own.height / 3;
  };
  const told = (e, lineIds, stepIds, from) => {
    const on = () => light(lineIds, stepIds, from);
    e.addEventListener("mouseenter", on);
    e.addEventListener("focusin", on);
  };

  // --- the user's lines --------------------------------------------------------------------------
  const byFile = new Map();
  for (const l of data.lines) byFile.has(l.file) ? byFile.get(l.file).push(l) : byFile.set(l.file, [l]);
  const sourceLine = (known, number, text) => {
    const e = known ? make("button", "", { id: anchor(known.id), type: "button" }) : make("div");
    e.className = "src mono";
    e.append(make("span", String(number)), text);
    if (known) {
      const some = stepsOf.get(known.id) || [];
      told(e, [known.id], some.map((s) => s.id), source);
      e.addEventListener("click", () => show(some, `${some.length} steps of ${short(known.id)}`));
    }
    return e;
  };
  for (const [file, known] of byFile) {
    source.append(make("h3", file));
    const text = (data.sources[file] || "").split("\n");
    const at = new Map(known.map((l) => [l.number, l]));
    let last = 0;
    if (at.has(0)) source.append(sourceLine(at.get(0), "", at.get(0).text));
    for (const n of [...at.keys()].filter((n) => n).sort((a, b) => a - b)) {
      for (let i = Math.max(last + 1, n - AROUND); i <= Math.min(n + AROUND, Math.max(text.length, n)); i++) {
        if (i > last + 1 && last) source.append(make("div", "...", { class: "src mono" }));
        source.append(sourceLine(at.get(i), i, text[i - 1] ?? (at.has(i) ? at.get(i).text : "")));
        last = i;
      }
    }
  }

  // --- steps -------------------------------------------------------------------------------------
  const timed = steps.some((s) => s.seconds !== null);
  const COLUMNS = ["step", "runs", "bytes", "saved", "ops", ...(timed ? ["time", "roof"] : []), "line", "computes"];
  const NUMBERS = new Set(["bytes", "saved", "ops", "time", "roof"]);
  const roof = (s) => {  // the least time that the machine could take, by the time taken
    const r = data.roofline, ops = s.kind === "aten" ? s.ops / r.ops_per_second : 0;
    return `${((100 * Math.max(s.bytes / r.bytes_per_second, ops)) / s.seconds).toFixed(0)}%`;
  };
  const own = (id) => id.split(".").pop();
  const excerpt = (text, names) => {  // what a text defines under these names
    const wanted = new Set(names), found = [];
    let margin = "", end = null;
    for (const line of (text || "").split("\n")) {
      const name = end === null && /^(\s*)([\w.]+)(?::| =) /.exec(line);
      if (end === null && !(name && wanted.has(name[2]))) continue;
      if (name) margin = name[1];
      found.push(line.slice(margin.length));
      if (name && line.endsWith("{")) end = `${margin}}`;
      else if (line === end) end = null;
    }
    return found.join("\n");
  };
  const inside = (s) => {  // the step at every stage, in their order
    const k = kernels.get(s.name), { graph, program, schedule } = graphOf.get(s.id).texts;
    const group = excerpt(schedule, [own(s.id)]);
    const merged = /^.* of \((.*)\)/.exec(group.split("\n")[0]);
    const parts = [
      ["graph", excerpt(graph, s.nodes.map(own))],
      ["program", merged ? excerpt(program, merged[1].split(", ")) : ""],
      ["schedule", group],
      ...(k ? [["recipe", k.recipe], [`${k.language} source`, k.source], ["measured", k.ways.join("\n")]] : []),
    ].filter(([, text]) => text).flatMap(([name, text]) => [make("h3", name), block(text)]);
    const why = s.kind === "aten" ? `ATen runs it: ${s.reason}` : `reads ${s.reads.join(", ")}; writes ${s.writes.join(", ")}`;
    return make("div", "", { class: "inside" }, make("p", why), make("p", `graph nodes: ${s.nodes.join(", ")}`), ...parts);
  };
  const row = (s) => {
    const open = make("button", s.id, { type: "button", "aria-expanded": "false" });
    const where = s.lines.length ? s.lines[s.lines.length - 1] : "";
    const link = where ? make("a", short(where), { href: `#${encodeURIComponent(anchor(where))}` }) : "";
    const cells = [open, s.name, size(s.bytes), s.apart > s.bytes ? size(s.apart - s.bytes) : "",
      s.ops ? size(s.ops, "") : "", ...(timed ? (s.seconds === null ? ["", ""] : [time(s.seconds), roof(s)]) : []), link,
      s.nodes.map(own).join(", ")];
    const r = make("tr", "", { id: s.id });
    cells.forEach((c, i) => r.append(make("td", "", NUMBERS.has(COLUMNS[i]) ? { class: "n" } : {}, c)));
    told(r, s.lines, [s.id], rows);
    open.addEventListener("click", () => {
      const was = open.getAttribute("aria-expanded") === "true";
      open.setAttribute("aria-expanded", String(!was));
      if (was) r.nextSibling.remove();
      else r.after(make("tr", "", {}, make("td", "", { colspan: String(COLUMNS.length) }, inside(s))));
    });
    return r;
  };
  const show = (some, title) => {  // as many rows as are asked for
    said.textContent = title;
    const head = make("tr", "", {}, ...COLUMNS.map((c) => make("th", c, NUMBERS.has(c) ? { scope: "col", class: "n" } : { scope: "col" })));
    const body = make("tbody");
    rows.replaceChildren(make("table", "", {}, make("caption", title), make("thead", "", {}, head), body));
    const more = make("button", "", { type: "button", class: "more" });
    let shown = 0;
    const next = () => {
      body.append(...some.slice(shown, shown + CHUNK).map(row));
      shown = Math.min(shown + CHUNK, some.length);
      more.textContent = `${some.length - shown} more`;
      more.hidden = shown === some.length;
    };
    more.addEventListener("click", next);
    next();
    rows.append(more);
    if (some !== steps) {
      const all = make("button", `all ${steps.length} steps`, { type: "button", class: "more" });
      all.addEventListener("click", () => show(steps, `all ${steps.length} steps`));
      rows.append(all);
    }
  };
  show(steps, `all ${steps.length} steps`);
  document.addEventListener("click", (e) => {  // findings lead to their step
    const id = e.target.dataset && e.target.dataset.step;
    const step = id && steps.find((s) => s.id === id);
    if (step) { show([step], `step ${id}`); light(step.lines, [id]); }
  });

  // --- graphs: timeline, memory, texts -----------------------------------------------------------
  const bars = (seconds) => {
    const own = Object.entries(seconds).filter(([k]) => k !== "total");
    const total = own.reduce((t, [, v]) => t + v, 0) || 1;
    const label = own.map(([k, v]) => `${k} ${time(v)}`).join(", ");
    const parts = own.map(([k, v]) => make("i", v > total / 12 ? k : "", { style: `width:${(100 * v) / total}%`, title: `${k} ${time(v)}` }));
    return [make("div", "", { class: "bars", role: "img", "aria-label": label }, ...parts), make("p", label, { class: "hint" })];
  };
  const memory = (m) => {
    const most = Math.max(...m.held.map((h) => h), 1), width = m.held.length;
    const stride = Math.ceil(width / 2000);
    let path = `M0 100`;
    for (let i = 0; i < width; i += stride) {
      let high = 0;
      for (let j = i; j < Math.min(i + stride, width); j++) high = Math.max(high, m.held[j]);
      const y = 100 - (100 * high) / most;
      path += `L${i} ${y}L${Math.min(i + stride, width)} ${y}`;
    }
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg"), p = document.createElementNS(ns, "path");
    svg.setAttribute("viewBox", `0 0 ${width} 100`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `bytes held over ${width} steps, ${size(most)} at most`);
    p.setAttribute("d", `${path}L${width} 100Z`);
    svg.append(p);
    const living = m.living.slice(0, 12).map((x) => `${x.buffer}: ${size(x.bytes)} ${x.argument ? "(argument)" : short(x.line)}`);
    return [make("p", `holds ${size(most)} at most beside arguments; in use at step ${m.peak}:`), svg, block(living.join("\n"))];
  };
  const graphs = document.getElementById("graphs");
  data.graphs.forEach((g, i) => {
    const fill = () => [
      ...(g.fallback ? [make("p", `ATen runs the whole graph: ${g.fallback}`)] : []),
      ...[g.cuda_graph, g.regions, g.host && `Python runs the host program: ${g.host}`].filter(Boolean).map((t) => make("p", t)),
      ...bars(g.seconds),
      ...(g.memory ? memory(g.memory) : []),
      ...Object.entries(g.texts).map(([name, text]) => lazily(name, () => [block(text)])),
    ];
    const title = `${g.id} (${g.kind}${g.line ? ", " + short(g.line) : ""}): ${g.operators} operator calls, compiled in ${time(g.seconds.total || 0)}`;
    const d = lazily(title, fill);
    graphs.append(d);
    if (i < 2) d.open = true;
  });

  // --- lists -------------------------------------------------------------------------------------
  const list = (title, some, text) => {
    if (some.length)
      lists.append(lazily(`${title} (${some.length})`, () => [block(some.slice(0, 2000).map(text).join("\n\n"))]));
  };
  const lists = document.getElementById("lists");
  list("Graph breaks", data.breaks, (b) => `${short(b.line)}  ${b.detail}`);
  list("Recompiles", data.recompiles, (r) => `${r.graph}  ${short(r.line)}  ${r.guard}`);
  list("Not fused", data.graphs.flatMap((g) => g.refused), (r) => `${r.one}, ${r.other} (${size(r.bytes)}): ${r.reason}`);
  list("Calls of ATen", steps.filter((s) => s.kind === "aten"), (s) => `${s.id}  ${s.name}  ${short(s.lines[s.lines.length - 1])}: ${s.reason}`);
  list("Options", Object.entries(data.options), ([k, v]) => `${k} = ${JSON.stringify(v)}`);
})();
