// One pipeline: its drawing, its charts, its destinations and sources, its micro-batches.
import { address, PAGE, pager } from "./address.js";
import { ask, of } from "./ask.js";
import { charts, rate } from "./charts.js";
import { drawing } from "./drawing.js";
import { head, said } from "./head.js";
import { age, at, badge, bytes, count, el, outward, plural, table, when } from "./parts.js";

/** @param {string} id @param {string} what @param {Json} body */
async function change(id, what, body) {
  try {
    const done = await ask(of(id, what), {}, body);
    said.textContent = [`${id}: ${done.status}`, done.left && `in flight: ${done.left}`, done.note].filter(Boolean).join("; ");
  } catch (error) {
    said.textContent = `${what} was refused: ${error.message}`;
  }
  document.dispatchEvent(new Event("conduit:again"));
}

/** @param {Shown} p */
function controls(p) {
  const active = ["running", "recovering"].includes(p.status);
  return el("div", { class: "head" },
    el("button", { id: "start", disabled: active, onclick: () => change(p.pipeline, "start", {}) }, "Start"),
    el("button", { id: "stop", disabled: !active, onclick: () => change(p.pipeline, "stop", { force: false }) }, "Stop"),
    el("button", { id: "force", class: "danger", disabled: p.status === "stopped", onclick: () => {
      if (confirm(`Stop ${p.pipeline} at once? What is not sealed is dropped and read again after the next start.`))
        change(p.pipeline, "stop", { force: true });
    } }, "Stop at once"));
}

// Of an isolated pipeline each destination can be stopped alone.
/** @param {Shown} p @param {ShownDestination} d */
function destinationControl(p, d) {
  if (!p.isolate) return [];
  const stopped = d.status === "stopped";
  return [el("button", { id: `${stopped ? "start" : "stop"}-${d.id}`, "aria-label": `${stopped ? "Start" : "Stop"} ${d.id}`,
    onclick: () => change(p.pipeline, stopped ? "start" : "stop", { destination: d.id }) }, stopped ? "Start" : "Stop")];
}

/** @param {Route} r @returns {Promise<Child[]>} */
export async function overview(r) {
  /** @type {[Shown, Graph]} */
  const [p, graph] = await Promise.all([ask(of(r.id)), ask(of(r.id, "topology"))]);
  const over = await charts(r, p);
  const read = Object.fromEntries(p.sources.map((s) => [s.id, s.read]));
  /** @type {Box[][]} */
  const columns = [graph.sources.map((s) => ({ lines: [s.id, s.plugin, ...s.processors.map((x) => `· ${x.plugin}`), `${count(read[s.id])} read`] }))];
  if (graph.processors.length) columns.push([{ lines: ["processors", ...graph.processors.map((x) => `· ${x.id}: ${x.plugin}`)] }]);
  const about = Object.fromEntries(p.destinations.map((d) => [d.id, d]));
  columns.push(graph.destinations.map((d) => {
    const s = about[d.id];
    return {
      state: s.status !== "running" || s.error ? "failed" : s.lag.records ? "late" : "",
      lines: [d.id, `${d.plugin} · ${d.pipe}${d.filters ? " · filtered" : ""}`, ...d.processors.map((x) => `· ${x.plugin}`),
        `cursor ${count(s.cursor)} · ${count(s.delivered)} delivered`,
        s.lag.records ? `behind ${count(s.lag.records)} · ${bytes(s.lag.bytes)} · ${age(s.lag.age)}` : "up to date",
        ...(s.dead ? [plural(s.dead, "dead letter")] : [])],
    };
  }));
  return [
    ...head(r, p.dag_id, p.status),
    p.description ? el("p", { class: "dim" }, p.description) : null,
    p.lost ? el("p", { class: "first-error" }, p.lost) : null,
    p.error ? el("p", { class: "first-error" }, `First error, ${p.error.node}, ${when(p.error.at)}: ${p.error.error}`) : null,
    ...p.destinations.filter((d) => d.breaker && d.breaker.opened).map((d) => el("p", { class: "first-error" },
      `${d.id} waits: its breaker is open since ${when(d.breaker.since)} (${plural(d.breaker.failures, "failure")} in a row, ` +
      `the last: ${d.breaker.error}); one record is tried ${d.breaker.left ? `at ${when(d.breaker.until)}` : "now"}`)),
    controls(p),
    drawing(columns, `Topology of ${r.id}`),
    over.node,
    el("h2", {}, "Destinations"),
    table(["Destination", "Status", "#Cursor", "#Behind", "#Bytes", "#Age", "#Delivered", "#Lately", "#Retried", "#Dead",
      "#Parked", "Lease", "Task", ...(p.isolate ? ["Alone"] : [])],
      p.destinations.map((d) => [d.id, badge(d.status), count(d.cursor), count(d.lag.records), bytes(d.lag.bytes), age(d.lag.age),
        count(d.delivered), rate(over.rateOf(d.id)), count(d.retried),
        d.dead ? el("a", { href: address([r.id, "dead-letters"], { destination: d.id }) }, count(d.dead)) : "0",
        count(d.parked_keys), d.lease_for ? `held, ${age(d.lease_for)}` : "free",
        outward(`/dags/${encodeURIComponent(p.dag_id)}/tasks/${encodeURIComponent(d.task_id)}`, "task"),
        ...destinationControl(p, d)])),
    el("h2", {}, "Sources"),
    table(["Source", "#Read", "#Filtered", "#Nacked", "Acked", "Task"],
      p.sources.map((s) => [s.id, count(s.read), count(s.filtered), count(s.nacked),
        Object.entries(s.acked).map(([part, position]) => `${part}: ${JSON.stringify(position)}`).join(", ") || "–",
        outward(`/dags/${encodeURIComponent(p.dag_id)}/tasks/${encodeURIComponent(s.task_id)}`, "task")])),
  ];
}

/** @param {Route} r @returns {Promise<Child[]>} */
export async function microBatches(r) {
  /** @type {[Graph, Page<ShownMicroBatch>]} */
  const [graph, found] = await Promise.all([
    ask(of(r.id, "topology")), ask(of(r.id, "micro-batches"), { until: r.query.get("until"), offset: r.query.get("offset"), limit: PAGE })]);
  const ids = graph.destinations.map((d) => d.id);
  /** @param {ShownMicroBatch} m @param {string} id */
  const share = (m, id) => {
    const d = m.destinations[id];
    if (d.delivered) return "✓ delivered";
    return m.state === "sealed" ? `${count(d.confirmed)} of ${count(m.records)}` : "–";
  };
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, r.query.get("until") ? `Micro-batches up to ${at(/** @type {string} */ (r.query.get("until")))} UTC` : "Micro-batches"),
    table(["#Number", "State", "#Records", "#Bytes", "Sealed (UTC)", ...ids],
      found.items.map((m) => [count(m.number), m.missing?.length ? `${m.state}, waits for ${m.missing.join(", ")}` : m.state,
        count(m.records), m.bytes === undefined ? "–" : bytes(m.bytes), when(m.sealed_at), ...ids.map((id) => share(m, id))]),
      "None was opened yet."),
    pager(found, r),
  ];
}
