// A document of paper: as much of the DOM as page.js asks for.  Prints what the script did.
"use strict";
const named = new Map();
class Node {
  constructor(tag) { Object.assign(this, { tag, children: [], attributes: {}, heard: {}, style: {}, dataset: {} }); }
  get classList() {
    const own = () => (this.className || "").split(" ").filter(Boolean);
    return {
      add: (c) => { this.className = [...new Set([...own(), c])].join(" "); },
      remove: (c) => { this.className = own().filter((x) => x !== c).join(" "); },
      contains: (c) => own().includes(c),
    };
  }
  setAttribute(k, v) { this.attributes[k] = v; if (k === "id") named.set((this.id = v), this); if (k === "class") this.className = v; }
  getAttribute(k) { return this.attributes[k] ?? null; }
  append(...all) { for (const x of all) if (x !== "") { this.children.push(x); if (x instanceof Node) x.parent = this; } }
  replaceChildren(...all) { for (const c of this.children) c.parent = null; this.children = []; this.append(...all); }
  after(x) { const c = this.parent.children; c.splice(c.indexOf(this) + 1, 0, x); x.parent = this.parent; }
  getBoundingClientRect() { return { top: 0, bottom: 0, height: 0 }; }
  remove() { this.parent.children = this.parent.children.filter((x) => x !== this); }
  addEventListener(name, f) { (this.heard[name] ||= []).push(f); }
  fire(name) { for (const f of this.heard[name] || []) f({ target: this }); }
  *all() { for (const c of this.children) if (c instanceof Node) { yield c; yield* c.all(); } }
  get text() { return (this.textContent || "") + this.children.map((c) => (c instanceof Node ? c.text : c)).join(" "); }
}
const { data, script } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const root = new Node("body");
for (const id of ["data", "said", "source", "rows", "graphs", "lists"]) {
  const n = new Node("div");
  n.setAttribute("id", id);
  root.append(n);
}
root.children[0].textContent = data;
const attached = (n) => n === root || (n && attached(n.parent));
const find = (id) => (attached(named.get(id)) ? named.get(id) : null);
globalThis.document = {
  getElementById: find, createElement: (t) => new Node(t), createElementNS: (_, t) => new Node(t),
  addEventListener: (name, f) => root.addEventListener(name, f),
};
const start = performance.now();
new Function(script)();
const seconds = (performance.now() - start) / 1000;
const of = (tag, node) => [...node.all()].filter((n) => n.tag === tag);
const lit = () => [...root.all()].filter((n) => n.classList.contains("lit")).map((n) => n.id);
const rows = of("tr", find("rows")), lines = of("button", find("source"));
rows[1].fire("mouseenter");
const litByStep = lit();
const firstLine = JSON.parse(data).graphs[0].steps[0].lines[0];
find(`line-${firstLine}`).fire("focusin");
const litByLine = lit();
of("button", rows[1])[0].fire("click");
const opened = rows[1].parent.children[1].text;
for (const d of of("details", root)) { d.open = true; d.fire("toggle"); }
for (const l of lines) l.fire("click");
console.log(JSON.stringify({ rows: rows.length, lines: lines.map((n) => n.id), litByStep, litByLine, opened, seconds }));
