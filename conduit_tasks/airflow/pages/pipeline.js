// One pipeline as it goes: its drawing, the micro-batch in front, its charts, its destinations and sources.
import { address } from "./address.js";
import { ask, of } from "./ask.js";
import { charts, MOST, rangeOf, rate } from "./charts.js";
import { drawing } from "./drawing.js";
import { head, said } from "./head.js";
import { holder, toTask } from "./holder.js";
import { live } from "./live.js";
import { age, badge, bytes, count, el, outward, plural, put, when } from "./parts.js";
import { rates } from "./rates.js";
import { stages } from "./stages.js";
import { liveTable } from "./tables.js";

/** @param {string} id @param {string} what @param {Json} body */
async function change(id, what, body) {
  try {
    const done = await ask(of(id, what), {}, body);
    said.textContent = [`${id}: ${done.status}`, done.left && `in flight: ${done.left}`, done.note].filter(Boolean).join("; ");
  } catch (error) {
    said.textContent = `${what} was refused: ${error.message}`;
  }
}

/** @param {string} id @returns {Part} */
function controls(id) {
  const start = el("button", { id: "start", onclick: () => change(id, "start", {}) }, "Start");
  const stop = el("button", { id: "stop", onclick: () => change(id, "stop", { force: false }) }, "Stop");
  const force = el("button", { id: "force", class: "danger", onclick: () => {
    if (confirm(`Stop ${id} at once? What is not sealed is dropped and read again after the next start.`)) change(id, "stop", { force: true });
  } }, "Stop at once");
  const show = (/** @type {Shown} */ p) => {
    const active = ["running", "recovering"].includes(p.status);
    [start.disabled, stop.disabled, force.disabled] = [active, !active, p.status === "stopped"];
  };
  return { node: el("div", { class: "head" }, start, stop, force), show };
}

// What is wrong, and the task whose log tells of it.
/** @param {Shown} p @returns {{ text: string, task?: NamedTask | null }[]} */
function wrongs(p) {
  const said = [p.lost, p.error && `First error, ${p.error.node}, ${when(p.error.at)}: ${p.error.error}`].filter(Boolean);
  return [...said.map((text) => ({ text: String(text) })), ...p.destinations.flatMap(({ id, breaker, outage }) => {
    const task = outage?.run_id ? { dag_id: outage.dag_id, run_id: outage.run_id, task_id: outage.task_id } : null;
    if (breaker?.opened) return [{ task, text: `${id} waits: its breaker is open since ${when(breaker.since)} (${plural(breaker.failures, "failure")} ` +
      `in a row, the last: ${breaker.error}); one record is tried ${breaker.left ? `at ${when(breaker.until)}` : "now"}` }];
    return outage ? [{ task, text: `${id} does not answer since ${when(outage.since)}, last tried ${when(outage.at)}: ${outage.error}` }] : [];
  })];
}

// Who waits for whom, and what is wrong; as high whether there is something to say or not.
/** @returns {Part} */
function state() {
  const before = el("span"), name = el("button", { id: "to-bottleneck", onclick: () => {
    document.getElementById(`n-${name.textContent}`)?.scrollIntoView({ block: "center" });
  } }), after = el("span"), first = el("p", { id: "bottleneck" }, before, name, after), wrong = el("div", { id: "wrong" });
  const node = el("div", { class: "now", role: "region", "aria-label": "State", tabindex: 0 }, first, wrong);
  const show = (/** @type {Shown} */ p) => {
    const b = p.bottleneck, waiting = b ? b.waiting : [], n = waiting.length;
    const who = n ? ` ${n > 3 ? plural(n, "node") : waiting.join(", ")} ${n === 1 ? "waits" : "wait"} for it.` : "";
    // The pipeline as a whole has no place in the drawing that a link could go to.
    put(before, b ? `Bottleneck: ${b.node ? "" : p.pipeline}` : "Nobody waits for anybody.");
    put(name, b?.node ?? "");
    name.hidden = !b?.node;
    put(after, b ? `: ${b.why}.${who}` : "");
    const said = wrongs(p), told = JSON.stringify(said);
    node.classList.toggle("bad", said.length > 0);
    if (wrong.dataset.shown === told) return;
    wrong.dataset.shown = told;
    wrong.replaceChildren(...said.map(({ text, task }) => el("p", { class: "error" }, text, ...(task ? [" ", toTask(task, "log")] : []))));
  };
  return { node, show };
}

/** @param {Shown} p @param {ShownSource | ShownDestination} of_ */
const task = (p, of_) => outward(`/dags/${encodeURIComponent(p.dag_id)}/tasks/${encodeURIComponent(of_.task_id)}`, "task");

// Of an isolated pipeline each destination can be stopped alone.
/** @param {Shown} p @param {ShownDestination} d */
function alone(p, d) {
  if (!p.isolate) return [];
  const verb = d.status === "stopped" ? "start" : "stop", text = verb === "start" ? "Start" : "Stop";
  return [el("button", { id: `${verb}-${d.id}`, "aria-label": `${text} ${d.id}`, onclick: () => change(p.pipeline, verb, { destination: d.id }) }, text)];
}

/** @param {Shown} p @param {string} id */
function tables(p, id) {
  const destinations = liveTable(["Destination", "Status", "#Cursor", "#Behind", "#Bytes", "#Age", "#Delivered", "#Rate", "#Retried", "#Dead",
    "#Parked", "Lease", "Task", ...(p.isolate ? ["Alone"] : [])], p.destinations.map((d) => d.id), "Destinations");
  const sources = liveTable(["Source", "#Read", "#Rate", "#Filtered", "#Nacked", "Acked", "Lease", "Task"], p.sources.map((s) => s.id), "Sources");
  const acked = (/** @type {ShownSource} */ s) => (s.acked ? Object.entries(s.acked).map(([part, at]) => `${part}: ${JSON.stringify(at)}`).join(", ") || "–" : plural(s.parts, "part"));
  /** @param {Shown} now @param {RateOf} rateOf */
  const show = (now, rateOf) => {
    for (const d of now.destinations) destinations.set(d.id, [d.id, badge(d.status), count(d.cursor), count(d.lag.records), bytes(d.lag.bytes),
      age(d.lag.age), count(d.delivered), rate(rateOf(`destinations.${d.id}`)), count(d.retried),
      d.dead ? el("a", { href: address([id, "dead-letters"], { destination: d.id }) }, count(d.dead)) : "0", count(d.parked_keys),
      (/** @type {HTMLElement} */ cell) => holder(cell, now, `destinations.${d.id}`), task(now, d), ...alone(now, d)]);
    for (const s of now.sources) sources.set(s.id, [s.id, count(s.read), rate(rateOf(`sources.${s.id}`)), count(s.filtered), count(s.nacked), acked(s),
      (/** @type {HTMLElement} */ cell) => holder(cell, now, `sources.${s.id}`), task(now, s)]);
  };
  return { nodes: [el("h2", {}, "Destinations"), destinations.node, el("h2", {}, "Sources"), sources.node], show };
}

/** @param {Route} r @param {Live} p */
function page(r, p) {
  /** @type {Part[]} */
  const parts = [state(), controls(r.id), drawing(p.graph), stages(p.graph)], over = charts(r, p), list = tables(p, r.id);
  const status = el("span", { class: `badge ${p.status}`, id: "status" }, p.status), rateOf = rates(), graph = JSON.stringify(p.graph);
  const show = (/** @type {Live} */ now) => {
    if (JSON.stringify(now.graph) !== graph) { document.dispatchEvent(new Event("conduit:again")); return; }
    const at = rateOf(now);
    put(status, now.status);
    status.className = `badge ${now.status}`;
    for (const part of [...parts, list]) part.show(now, at);
  };
  show(p);
  const about = p.description ? [el("p", { class: "dim" }, p.description)] : [];
  return { nodes: [...head(r, p.dag_id, status), ...about, ...parts.map((part) => part.node), over.node, ...list.nodes], show, series: over.set };
}

// Resolves once there is something to show; `close` ends the connection.
/** @param {Route} r @returns {Promise<Going>} */
export function overview(r) {
  return new Promise((found, failed) => {
    let /** @type {ReturnType<typeof page> | null} */ here = null;
    const close = live(r.id, { seconds: rangeOf(r), most: MOST }, {
      look: (p) => {
        if (here) { here.show(p); return; }
        here = page(r, p);
        found({ nodes: here.nodes, close });
      },
      series: (curves) => here?.series(curves),
      failed,
    });
  });
}
