// The last records of a stage, masked, and what became of each at a destination.
import { address } from "./address.js";
import { ask, of } from "./ask.js";
import { sideBySide } from "./diff.js";
import { head } from "./head.js";
import { count, el, plural } from "./parts.js";

/** @type {Record<string, string>} */
const STATES = { passed: "running", acked: "running", nacked: "degraded", open: "recovering", confirmed: "stopped" };

/** @param {Peeked} one */
function answer(one) {
  if (one.error) return el("p", { class: "error" }, `${one.error.node}, ${one.error.class}: ${one.error.message}`);
  const a = one.answer;
  if (!a) return null;
  return el("p", { class: a.error ? "error" : "dim" }, [`${a.outcome} ${a.ended}`, a.run, a.exact ? "" : "with others between them", a.error_class, a.error].filter(Boolean).join(" · "));
}

const text = (/** @type {Json} */ record) => JSON.stringify({ ...record, position: undefined }, null, 2);

// The key and the payload on one line.
/** @param {Json} record */
const brief = ({ key, payload }) => [key, payload?.after ?? payload?.before ?? payload].filter((part) => part !== null && part !== undefined)
  .map((part) => (typeof part === "string" ? part : JSON.stringify(part)).slice(0, 300)).join(" · ") || "no payload";

// As it came, and where that differs, as the destination's processors make it.
/** @param {Peeked} one */
function content(one) {
  const sent = one.sent?.records ?? [];
  const whole = el("pre", { tabindex: 0, "aria-label": "The record" }, text(one.record));
  const left = one.sent?.left_out.length ? el("p", { class: "dim" }, `Without ${one.sent.left_out.join(", ")}, which would make calls or need Spark.`) : null;
  const differs = sent.length ? sideBySide(text(one.record).split("\n"), sent.flatMap((each) => text(each).split("\n")), "As wanted", "As sent, by the file as it is now") : null;
  // One line of each, or twenty of them are a page that nobody gets to the end of.
  return el("details", { class: "fold" }, el("summary", {}, brief(one.record)), whole, differs, left);
}

/** @param {Route} r @returns {Promise<Child[]>} */
export async function records(r) {
  /** @type {Graph} */
  const graph = await ask(of(r.id, "topology"));
  const node = r.query.get("node") ?? "processors";
  const stages = [...graph.sources.map((s) => [`sources.${s.id}`, `${s.id}: as read`]), ["processors", graph.processors.length ? "processors: after them" : "sealed"],
    ...graph.destinations.map((d) => [`destinations.${d.id}`, `${d.id}: as wanted, with the answer`])];
  /** @type {{ records: Peeked[], looked: number }} */
  const found = await ask(of(r.id, "records"), { node, last: r.query.get("last") ?? 20 });
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, "Last records"),
    el("div", { class: "head", id: "stages" },
      ...stages.map(([id, text]) => el("a", { class: "choice", id: `s-${id}`, href: address([r.id, "records"], { node: id }), "aria-current": id === node ? "true" : null }, text)),
      el("button", { id: "again", onclick: () => document.dispatchEvent(new Event("conduit:again")) }, "Look again")),
    el("p", { class: "dim" }, `${plural(found.records.length, "record")}, the newest first, of ${plural(found.looked, "micro-batch", "micro-batches")} looked at. `
      + "Fields named secret, and those under mask in the file, are ***."),
    ...found.records.map((one, n) => el("article", { class: `step ${one.state === "nacked" ? "open" : ""}`, id: `r-${n}` },
      el("div", { class: "head" }, el("strong", {}, `Micro-batch ${count(one.micro_batch)}${one.seq === null ? "" : `, record ${one.seq}`}`),
        el("span", { class: `badge ${STATES[one.state ?? ""] ?? "stopped"}` }, one.state ?? "no answer yet"),
        el("a", { href: address([r.id, "try"], { place: one.place }) }, "Try it"),
        el("a", { href: address([r.id, "record", one.id], { "micro-batch": one.micro_batch }) }, "Its history")),
      answer(one),
      content(one))),
    found.records.length ? null : el("p", { class: "dim" }, "There is none here in the newest micro-batches of the spool."),
  ];
}
records.still = true;
