// The micro-batch in front as a bar of its stages: read, processed, sealed, delivered to each destination, acked.
import { count, el, plural, put } from "./parts.js";

const EACH = 12; // destinations that have a stage of their own; of more only how many have it is told

// Returns the bar, and what shows a look in it.
/** @param {Graph} graph */
export function stages(graph) {
  /** @type {Map<string, { bar: HTMLProgressElement, text: HTMLElement }>} */
  const places = new Map();
  /** @param {string} name @param {string} title */
  const stage = (name, title) => {
    const bar = el("progress", { max: 1, value: 0, "aria-label": title }), text = el("span", { class: "small" }, "–");
    places.set(name, { bar, text });
    return el("li", {}, el("span", { class: "title" }, title), bar, text);
  };
  const few = graph.destinations.length <= EACH;
  const list = el("ol", { class: "stages" }, stage("read", "Read"), graph.processors.length ? stage("processed", "Processed") : null,
    stage("sealed", "Sealed"),
    ...(few ? graph.destinations.map((d) => stage(`d-${d.id}`, `Delivered to ${d.id}`)) : [stage("all", "Delivered")]), stage("acked", "Acked"));
  const title = el("span", {}, "Micro-batch"), about = el("span", { class: "dim", id: "front" });
  const node = el("section", { class: "front", "aria-label": "The micro-batch in front" }, el("h2", {}, title), el("p", { class: "line" }, about), list);

  // A stage that is not shown is passed over.
  /** @param {string} name @param {number} done @param {number} of @param {string} text */
  function set(name, done, of, text) {
    const place = places.get(name);
    if (!place) return;
    place.bar.max = Math.max(1, of);
    place.bar.value = done;
    put(place.text, text);
    place.text.classList.toggle("bad", text.endsWith("failed"));
  }

  /** @param {Shown} p */
  function show(p) {
    const f = p.front;
    put(title, f ? `Micro-batch ${count(f.number)}` : "Micro-batch");
    if (!f) { put(about, "None was opened yet."); return; }
    const records = f.records === null ? "" : ` · ${plural(f.records, "record")}`;
    const open = { degraded: "open: the pipeline was degraded before it was sealed", stopped: "open: the pipeline was stopped before it was sealed" }[p.status];
    put(about, { open: `${open ?? "open: it is being read"}${records}`, done: "all of it is done; nothing is in flight",
      sealed: `sealed, on its way${records}${f.after ? ` · ${count(f.after)} more behind it` : ""}` }[f.state]);
    const word = (/** @type {string} */ stage, /** @type {Done} */ { done }) => (f.failed === stage ? "failed" : done ? "yes" : "not yet");
    set("read", f.read.done, f.read.of, `${f.read.done} of ${plural(f.read.of, "source")}${f.failed === "read" ? ", failed" : ""}`);
    if (f.processed) set("processed", f.processed.done, f.processed.of, word("processed", f.processed));
    set("sealed", f.sealed.done, f.sealed.of, word("sealed", f.sealed));
    set("acked", f.acked.done, f.acked.of, `${f.acked.done} of ${plural(f.acked.of, "source")}`);
    const got = Object.entries(f.delivered);
    if (!few) {
      const whole = got.filter(([, d]) => f.state === "done" || (d.of !== null && d.done >= d.of)).length;
      set("all", whole, got.length, `${count(whole)} of ${plural(got.length, "destination")}`);
    } else for (const [id, d] of got) {
      if (f.state === "done") set(`d-${id}`, 1, 1, "all");
      else if (d.of === null) set(`d-${id}`, 0, 1, "not yet");
      else set(`d-${id}`, d.done, d.of, `${count(d.done)} of ${count(d.of)}`);
    }
  }

  return { node, show };
}
