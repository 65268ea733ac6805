// What a pipeline did over time: throughput, lag, age, latency, outcomes and retries, all over the same interval.
import { address } from "./address.js";
import { age, count, el, when } from "./parts.js";
import { plot, SECONDS } from "./plot.js";
import { then } from "./then.js";

/** @type {[seconds: number, text: string][]} */
const RANGES = [[900, "15 min"], [7200, "2 h"], [86400, "24 h"], [1209600, "14 days"]];
export const MOST = 8; // destinations in one chart; a table shows all
/** @type {[figure: string, label: string, color: number][]} */
const OUTCOMES = [["delivered", "delivered", 1], ["filtered", "filtered", 0], ["completed", "refused, completed", 4], ["parked", "parked", 3], ["nacked", "dead", 2]];
/** @param {number | null} n */
export const rate = (n) => (n === null ? "–" : `${n >= 10 || n === 0 ? count(Math.round(n)) : n.toFixed(n < 1 ? 2 : 1)}/s`);
const seconds = (/** @type {number | null} */ n) => (n === null ? "–" : n < 10 ? `${n.toFixed(n < 1 ? 2 : 1)} s` : age(n));
/** @type {Map<string, Charts>} */
const kept = new Map(); // by pipeline and range: charts live on while the page around them is drawn again

/** @param {Route} r */
export function rangeOf(r) {
  const wanted = Number(r.query.get("range"));
  return RANGES.some(([n]) => n === wanted) ? wanted : 7200;
}

// Returns the charts of a pipeline; `set` takes new curves. `p`: as the API shows it.
/** @param {Route} r @param {Shown} p */
export function charts(r, p) {
  const range = rangeOf(r), ids = p.destinations.map((d) => d.id);
  const name = JSON.stringify([r.id, range, ids]);
  const here = kept.get(name) ?? section(r, range, ids, p.dag_id);
  if (!kept.has(name) && kept.size > 4) kept.delete([...kept.keys()][0]);
  kept.set(name, here);
  return here;
}

/** @param {Route} r @param {number} range @param {string[]} ids @param {string} dag @returns {Charts} */
function section(r, range, ids, dag) {
  let /** @type {Interval} */ interval = null, /** @type {Series | null} */ found = null;
  const moment = el("p", { class: "dim", id: "moment", role: "status" }, "Drag over a chart to zoom; click a moment to see what ran then.");
  const all = el("button", { id: "zoom-all", disabled: true, onclick: () => zoom(null) }, "Show all");
  const shown = ids.slice(0, MOST);
  const each = (more = {}) => shown.map((id, n) => ({ label: id, color: n, dash: Math.floor(n / 8), ...more }));
  const common = { zoom, pick };
  const plots = {
    throughput: plot({ id: "throughput", title: "Throughput", format: rate, ...common, lines: [{ label: "read", color: 7, dash: 1 }, ...each()] }),
    lag: plot({ id: "lag", title: "Lag: records that wait", ...common, lines: each({ step: true }) }),
    age: plot({ id: "age", title: "Lag: age of the oldest", format: seconds, steps: SECONDS, ...common, lines: each({ step: true }) }),
    latency: plot({ id: "latency", title: "Latency, from event to confirmation", format: seconds, steps: SECONDS, ...common,
      lines: shown.flatMap((id, n) => [{ label: `${id} p50`, color: n }, { label: `${id} p99`, color: n, dash: 1 }]) }),
    outcomes: plot({ id: "outcomes", title: "Outcomes, all destinations", stacked: true, ...common,
      lines: OUTCOMES.map(([, label, color]) => ({ label, color, step: true })) }),
    retries: plot({ id: "retries", title: "Retries", ...common, lines: each({ step: true }) }),
  };
  const ranges = el("div", { class: "head", role: "group", "aria-label": "How far back" }, ...RANGES.map(([n, text]) =>
    el("a", { class: "choice", id: `r-${n}`, href: address([r.id], { range: n }), "aria-current": n === range ? "true" : null }, text)), all);
  const node = el("section", { "aria-label": "Over time" }, el("h2", {}, "Over time"), ranges, moment,
    el("div", { class: "charts" }, ...Object.values(plots).map((one) => one.node)));

  /** @param {Interval} to */
  function zoom(to) {
    if (JSON.stringify(to) === JSON.stringify(interval)) return;
    interval = to;
    all.disabled = to === null;
    draw();
  }

  /** @param {number} at */
  function pick(at) {
    if (!found) return;
    moment.replaceChildren(`${when(at)} UTC: `, .../** @type {(Node | string)[]} */ (then(r.id, dag, at, at + found.step, "moment")));
  }

  function draw() {
    if (!found) return;
    const { times, step, at, total, outcomes, destinations } = found;
    // The step of now is not over.
    const lasted = times.map((from) => Math.max(1, Math.min(step, at - from)));
    const per = (/** @type {Figures} */ figures) => figures.map((n, i) => (n === null ? null : n / lasted[i]));
    // A destination may have gone from the file since.
    const one = (/** @type {string} */ id, /** @type {string} */ figure) => destinations[id]?.[figure] ?? times.map(() => null);
    const of_ = (/** @type {string} */ figure) => shown.map((id) => one(id, figure));
    plots.throughput.set([times, per(total.read), ...of_("delivered").map(per)], interval);
    plots.lag.set([times, ...of_("lag")], interval);
    plots.age.set([times, ...of_("age")], interval);
    plots.latency.set([times, ...shown.flatMap((id) => [one(id, "p50"), one(id, "p99")])], interval);
    plots.outcomes.set([times, ...OUTCOMES.map(([figure]) => outcomes[figure])], interval);
    plots.retries.set([times, ...of_("retried")], interval);
  }

  /** @param {Series} curves */
  function set(curves) {
    found = curves;
    draw();
  }

  return { node, set };
}
