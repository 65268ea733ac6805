// The micro-batches of a pipeline, and how far each destination is with them.
import { PAGE, pager } from "./address.js";
import { ask, of } from "./ask.js";
import { head } from "./head.js";
import { at, bytes, count, el, table, when } from "./parts.js";

/** @param {Route} r @returns {Promise<Child[]>} */
export async function microBatches(r) {
  const until = r.query.get("until");
  /** @type {[Graph, Page<ShownMicroBatch>]} */
  const [graph, found] = await Promise.all([
    ask(of(r.id, "topology")), ask(of(r.id, "micro-batches"), { until, offset: r.query.get("offset"), limit: PAGE })]);
  const ids = graph.destinations.map((d) => d.id);
  /** @param {ShownMicroBatch} m @param {string} id */
  const share = (m, id) => {
    const d = m.destinations[id];
    if (d.delivered) return "✓ delivered";
    return m.state === "sealed" ? `${count(d.confirmed)} of ${count(m.records)}` : "–";
  };
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, until ? `Micro-batches up to ${at(until)} UTC` : "Micro-batches"),
    table(["#Number", "State", "#Records", "#Bytes", "Sealed (UTC)", ...ids],
      found.items.map((m) => [count(m.number), m.missing?.length ? `${m.state}, waits for ${m.missing.join(", ")}` : m.state,
        count(m.records), m.bytes === undefined ? "–" : bytes(m.bytes), when(m.sealed_at), ...ids.map((id) => share(m, id))]),
      "None was opened yet."),
    pager(found, r),
  ];
}
