// The last records of a stage, masked, and what became of each at a destination.
import { address } from "./address.js";
import { ask, of } from "./ask.js";
import { sideBySide } from "./diff.js";
import { head } from "./head.js";
import { at, count, el, plural } from "./parts.js";
import { one as step } from "./steps.js";

/** @type {Record<string, string>} */
const STATES = { passed: "running", acked: "running", nacked: "degraded", open: "recovering", confirmed: "stopped" };

/** @param {Peeked} one */
function answer(one) {
  if (one.error) return el("p", { class: "error" }, `${one.error.node}, ${one.error.class}: ${one.error.message}`);
  const a = one.answer;
  if (!a) return null;
  return el("p", { class: a.error ? "error" : "dim" }, [`${a.outcome} ${at(a.ended)} UTC`, a.run, a.exact ? "" : "with others between them", a.error_class, a.error].filter(Boolean).join(" · "));
}

const text = (/** @type {Json} */ record) => JSON.stringify({ ...record, position: undefined }, null, 2);

// The key and the payload on one line.
/** @param {Json} record */
const brief = ({ key, payload }) => [key, payload?.after ?? payload?.before ?? payload].filter((part) => part !== null && part !== undefined)
  .map((part) => (typeof part === "string" ? part : JSON.stringify(part)).slice(0, 300)).join(" · ") || "no payload";

// As it came, each processor after the stage with the record before and after it, and as sent where that differs. `only`: of one processor.
/** @param {Peeked} one @param {string} only */
function content(one, only) {
  const sent = one.sent?.records ?? [], made = (one.steps ?? []).filter((each) => !only || each.processor === only);
  const whole = el("pre", { tabindex: 0, "aria-label": "The record" }, text(one.record));
  const left = one.sent?.left_out.length ? el("p", { class: "dim" }, `Without ${one.sent.left_out.join(", ")}, which would make calls or need Spark.`) : null;
  const differs = sent.length && made.length > 1 ? sideBySide(text(one.record).split("\n"), sent.flatMap((each) => text(each).split("\n")), "As wanted", "As sent, by the file as it is now") : null;
  const shown = made.map((each) => step(each, null));
  // One line of each, or twenty of them are a page that nobody gets to the end of.
  return only ? el("div", {}, el("p", { class: "brief" }, brief(one.record)), ...shown)
    : el("details", { class: "fold" }, el("summary", {}, brief(one.record)), whole, ...shown, differs, left);
}

// What the chosen stage shows, and what of it is kept nowhere.
/** @param {Graph} graph @param {string} node @param {string} only @param {boolean} late */
function explained(graph, node, only, late) {
  const source = graph.sources.find((s) => `sources.${s.id}` === node), own = source?.processors.map((p) => p.id).join(", ");
  const again = "What a processor made is kept nowhere: it runs again here, by the file as it is now, one record at a time.";
  return [
    own ? `Shown as ${own} made it. What was read itself is kept nowhere, but for records that failed there: they are shown as they were read.` : source ? "Shown as it was read." : null,
    only || source || node.startsWith("destinations.") ? again : null,
    late ? "The processors did not end in time: only what the spool has is shown." : null,
  ].filter(Boolean).map((said) => el("p", { class: "dim stage" }, said));
}

/** @param {Graph} graph @returns {string[][]} */
function choices(graph) {
  const after = (/** @type {string} */ node, /** @type {ShownProcessor[]} */ all) => all.map((p) => [`${node}/${p.id}`, `${p.id}: before and after`]);
  return [...graph.sources.map((s) => [`sources.${s.id}`, `${s.id}: ${s.processors.length ? "read, after its processors" : "as read"}`]),
    ...after("processors", graph.processors), ["processors", graph.processors.length ? "processors: after them" : "sealed"],
    ...graph.destinations.flatMap((d) => [[`destinations.${d.id}`, `${d.id}: as wanted and sent, with the answer`], ...after(`destinations.${d.id}`, d.processors)])];
}

/** @param {Route} r @returns {Promise<Child[]>} */
export async function records(r) {
  /** @type {Graph} */
  const graph = await ask(of(r.id, "topology"));
  const node = r.query.get("node") ?? "processors";
  const [, only = ""] = node.split("/");
  /** @type {{ records: Peeked[], looked: number, cut: boolean }} */
  const found = await ask(of(r.id, "records"), { node, last: r.query.get("last") ?? 20 });
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, "Last records"),
    el("div", { class: "head", id: "stages" },
      ...choices(graph).map(([id, text]) => el("a", { class: "choice", id: `s-${id}`, href: address([r.id, "records"], { node: id }), "aria-current": id === node ? "true" : null }, text)),
      el("button", { id: "again", onclick: () => document.dispatchEvent(new Event("conduit:again")) }, "Look again")),
    el("p", { class: "dim" }, `${plural(found.records.length, "record")}, the newest first, of ${plural(found.looked, "micro-batch", "micro-batches")} looked at. `
      + "Fields named secret, and those under mask in the file, are ***."),
    ...explained(graph, node, only, Boolean(only) && found.records.some((one) => !one.steps)),
    ...found.records.map((one, n) => el("article", { class: `step ${one.state === "nacked" ? "open" : ""}`, id: `r-${n}` },
      el("div", { class: "head" }, el("strong", {}, `Micro-batch ${count(one.micro_batch)}${one.seq === null ? "" : `, record ${one.seq}`}`),
        el("span", { class: `badge ${STATES[one.state ?? ""] ?? "stopped"}` }, one.state ?? "no answer yet"),
        el("a", { href: address([r.id, "try"], { place: one.place }) }, "Try it"),
        el("a", { href: address([r.id, "record", one.id], { "micro-batch": one.micro_batch }) }, "Its history")),
      answer(one),
      content(one, only))),
    found.cut ? el("p", { class: "dim" }, "Long texts and lists are cut.") : null,
    found.records.length ? null : el("p", { class: "dim" }, "There is none here in the newest micro-batches of the spool."),
  ];
}
records.still = true;
