// One pipeline as a drawing: sources, processors, the spool, destinations, from left to right; figures on what joins them.
import { age, bytes, count, el, plural, put } from "./parts.js";
import { rate } from "./charts.js";
import { holder } from "./holder.js";
import { liveTable } from "./tables.js";

const SEAL = "seal"; // the node that seals micro-batches: the spool of the drawing
const MANY = 6; // destinations from which on the drawing scrolls by itself

/** @param {string} node @param {string} name @param {string[]} lines */
function box(node, name, lines) {
  const state = el("span", { class: "state" }), lease = el("span", { class: "lease" });
  const mark = el("span", { class: "mark" }, "bottleneck");
  const root = el("div", { class: "node", id: `n-${node}` }, el("span", { class: "name" }, el("strong", {}, name), mark),
    ...lines.map((line) => el("span", { class: "small" }, line)), state, lease);
  return { root, state, lease };
}

/** @param {number} [filters] */
function wire(filters) {
  const top = el("span", { class: "rate" }, "–"), below = el("span", { class: "behind" });
  return { root: el("div", { class: "wire" }, top, below, filters ? el("span", { class: "gate" }, plural(filters, "filter")) : null), top, below };
}

const chain = (/** @type {ShownProcessor[]} */ processors) => processors.map((p) => `· ${p.id}: ${p.plugin}`);

// What there is to say of a node in a word or two, and whether that is trouble.
/** @param {string} node @param {Shown} p @returns {[said: string, bad: boolean]} */
export function stateOf(node, p) {
  const d = p.destinations.find((each) => `destinations.${each.id}` === node);
  const failing = p.recovering.find((each) => each.node === node || each.node === node.replace("sources.", "plan."));
  if (d?.status === "stopped") return ["stopped", true];
  if (d?.breaker?.opened) return ["breaker open", true];
  if (failing) return [`failed ${plural(failing.failures, "time")}`, true];
  if (d?.outage) return ["does not answer", true];
  if (p.bottleneck?.node === node && p.bottleneck.rule === "degraded") return ["stopped the pipeline", true];
  if (p.bottleneck?.waiting.includes(node)) return [`waits for ${p.bottleneck.node || "a start"}`, false];
  if (d?.work === "waits") return ["left out, or ended", true];
  const about = d || p.sources.find((each) => `sources.${each.id}` === node) || (node === "processors" ? p.processors : null);
  return [about?.work === "at work" ? "at work" : "no task", false];
}

const behind = (/** @type {ShownDestination} */ d) => (d.lag.records ? `${count(d.lag.records)} behind · ${age(d.lag.age)}` : "up to date");

// Returns the drawing, and what shows a look in it.
/** @param {Graph} graph */
export function drawing(graph) {
  /** @type {Map<string, ReturnType<typeof box> & { wire: ReturnType<typeof wire> }>} */
  const nodes = new Map();
  /** @param {string} node @param {string} name @param {string[]} lines @param {number} [filters] @param {boolean} [before] */
  const lane = (node, name, lines, filters, before) => {
    const here = box(node, name, lines), edge = wire(filters);
    nodes.set(node, { ...here, wire: edge });
    return el("li", { class: "lane" }, ...(before ? [edge.root, here.root] : [here.root, edge.root]));
  };
  const sources = graph.sources.map((s) => lane(`sources.${s.id}`, s.id, [s.plugin, ...chain(s.processors)]));
  const middle = graph.processors.length ? [el("ul", { class: "column middle", "aria-label": "Processors" }, lane("processors", "processors", chain(graph.processors)))] : [];
  const destinations = graph.destinations.map((d) =>
    lane(`destinations.${d.id}`, d.id, [`${d.plugin} · ${d.pipe}`, ...chain(d.processors)], d.filters, true));
  const sealed = el("span", { class: "small" }), held = el("span", { class: "state" });
  // What it waits for, or fails at, is the seal of a micro-batch.
  const spool = el("div", { class: "node spool", id: `n-${SEAL}` }, el("span", { class: "name" }, el("strong", {}, "spool"), el("span", { class: "mark" }, "bottleneck")), sealed, held);
  const flow = el("div", { class: "flow", role: "group", "aria-label": `Topology of ${graph.pipeline}`, tabindex: destinations.length > MANY ? 0 : null },
    el("ul", { class: "column sources", "aria-label": "Sources" }, ...sources), ...middle, spool, el("ul", { class: "column destinations", "aria-label": "Destinations" }, ...destinations));
  const names = [...nodes.keys()];
  const rows = liveTable(["Node", "State", "#Records/s", "#Behind", "#Bytes behind", "#Oldest", "Bottleneck", "Lease"], names);
  const details = el("details", { id: "t-topology" }, el("summary", {}, "As a table"), rows.node);

  /** @param {Shown} p @param {RateOf} rateOf */
  function show(p, rateOf) {
    const about = new Map(p.destinations.map((d) => [`destinations.${d.id}`, d]));
    put(sealed, `${count(p.sealed)} sealed`);
    const first = p.bottleneck?.node === SEAL ? p.bottleneck : null, stopped = first?.rule === "degraded";
    put(held, stopped ? "stopped the pipeline" : p.held ? "lag budget used up" : "takes more");
    spool.classList.toggle("bottleneck", first !== null);
    spool.classList.toggle("failed", stopped);
    for (const [node, { root, state, lease, wire: { top, below } }] of nodes) {
      const [said, bad] = stateOf(node, p), b = p.bottleneck?.node === node ? p.bottleneck : null, d = about.get(node);
      put(state, said);
      holder(lease, p, node);
      root.classList.toggle("bottleneck", b !== null);
      root.classList.toggle("failed", bad);
      put(top, rate(rateOf(node)));
      if (d) put(below, behind(d));
      if (details.open) rows.set(node, [node, said, rate(rateOf(node)), d ? count(d.lag.records) : "", d ? bytes(d.lag.bytes) : "",
        d?.lag.records ? age(d.lag.age) : "", b ? b.why : "", (cell) => holder(cell, p, node)]);
    }
  }

  return { node: el("figure", { class: "drawing" }, flow, details), show };
}
