// A record's way through one micro-batch: a table whose bars stand below each other on one scale of time.
import { count, el, outward, plural } from "./parts.js";

const WIDTH = 1000, HIGH = 14;
const NS = "http://www.w3.org/2000/svg";
/** @type {Record<string, string>} */
const KIND = { acked: "good", nacked: "bad", open: "busy", confirmed: "idle" };

const clock = (/** @type {number | null} */ at) => (at === null ? "–" : new Date(at * 1000).toISOString().slice(11, 23));
const lasted = (/** @type {WayStep} */ step) => (step.began === null || step.ended === null ? null : Math.max(0, step.ended - step.began));
/** @param {number | null | undefined} n */
export const seconds = (n) => (n === null || n === undefined ? "–" : n < 10 ? `${n.toFixed(3)} s` : n < 600 ? `${n.toFixed(1)} s` : `${count(Math.round(n))} s`);

/** @param {string} name @param {Record<string, string | number>} attributes */
function shape(name, attributes) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  return node;
}

/** @param {WayStep} step @param {number} first @param {number} whole */
function bar(step, first, whole) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HIGH}`, preserveAspectRatio: "none", class: `way ${KIND[step.outcome ?? ""] ?? ""}`, "aria-hidden": "true" });
  const from = step.began ?? step.ended, to = step.ended ?? step.began;
  if (from === null || to === null) return svg;
  const x = ((from - first) / whole) * WIDTH, width = Math.max(4, ((to - from) / whole) * WIDTH);
  svg.append(shape("rect", { x: Math.min(x, WIDTH - 4), width: Math.min(width, WIDTH - Math.min(x, WIDTH - 4)), y: 1, height: HIGH - 2 }));
  return svg;
}

const answer = (/** @type {WayStep} */ step) => [step.outcome && (step.exact ? step.outcome : `${step.outcome} *`), step.status && step.status !== "done" ? step.status : null,
  step.error_class, step.sends ? `sent ${step.sends === 1 ? "once" : `${step.sends} times`}` : null, step.epoch ? "sent again" : null, step.retried ? `${plural(step.retried, "repeated send")} in the attempt` : null].filter(Boolean).join(", ");

// Seconds from the first time to a step; null where it has none.
/** @param {WayStep} step @param {number} first */
const after = ({ began, ended }, first) => { const at = began ?? ended; return at === null ? null : at - first; };

// A link to a run, whose name has the DAG before it unless it is one of the pipeline's own; what is no run of Airflow is a text.
/** @param {string | null} run @param {string} dag */
function toRun(run, dag) {
  const [id, of] = (run ?? "").split("/").reverse();
  return /^[A-Za-z0-9_.~:+-]+$/.test(id) ? outward(`/dags/${encodeURIComponent(of ?? dag)}/runs/${encodeURIComponent(id)}`, id) : run ?? "–";
}

/** @param {Place} place @param {string} dag */
function steps(place, dag) {
  const times = place.steps.flatMap((s) => [s.began, s.ended]).filter((t) => t !== null);
  const first = Math.min(...times), whole = Math.max(...times) - first || 1;
  const heads = ["Step", "Node", "Way", "Began (UTC)", "#After", "#Took", "Answer", "Error", "Run"];
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Steps of the record in micro-batch ${place.micro_batch}` }, el("table", { class: "waterfall" },
    el("caption", {}, `${seconds(whole)} from the first to the last time that is stored`),
    el("thead", {}, el("tr", {}, ...heads.map((h) => el("th", { scope: "col", class: h.startsWith("#") ? "number" : null }, h.replace("#", ""))))),
    el("tbody", {}, ...place.steps.map((step) => el("tr", {},
      el("th", { scope: "row" }, step.step), el("td", {}, step.node), el("td", { class: "bar" }, bar(step, first, whole)),
      el("td", {}, clock(step.began ?? step.ended)), el("td", { class: "number" }, seconds(after(step, first))),
      el("td", { class: "number" }, seconds(lasted(step))), el("td", { class: step.outcome === "nacked" ? "answer error" : "answer" }, answer(step) || "–"),
      el("td", { class: step.error ? "error text" : "error" }, step.error ?? ""), el("td", {}, toRun(step.run, dag)))))));
}

const target = (/** @type {Place["targets"][0]} */ t) => (t.attempts ? `${t.destination}: ${t.outcome}${t.error_class ? `, ${t.error_class}` : ""}, ${plural(t.attempts, "attempt")} in ${seconds(t.seconds)}`
  : `${t.destination}: no attempt`);

/** @param {Place} place @param {string} dag */
export function waterfall(place, dag) {
  return el("section", { class: "place", id: `m-${place.micro_batch}-${place.seq}-${place.ord}` },
    el("h3", {}, `Micro-batch ${count(place.micro_batch)}, record ${place.seq}, from ${[place.source, place.partition].filter(Boolean).join(" ")}: ${place.state} as a whole`),
    place.targets.length ? el("p", {}, place.targets.map(target).join("; ") + ".") : null,
    place.steps.length ? steps(place, dag) : null,
    ...place.notes.map((note) => el("p", { class: "dim" }, note)));
}
