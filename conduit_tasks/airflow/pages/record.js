// Records found by id, key or a field, and a record's delivery history.
import { address, entries } from "./address.js";
import { ask, of, Refusal } from "./ask.js";
import { head } from "./head.js";
import { count, el, plural, table } from "./parts.js";
import { waterfall } from "./waterfall.js";

const ID = "id";

/** @param {Route} r @param {string[]} fields @param {string} by @param {string} value */
function form(r, fields, by, value) {
  const node = el("form", { class: "head", id: "find", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    const given = entries(node);
    location.hash = given.by === ID ? address([r.id, "record", given.value.trim()]) : address([r.id, "record"], given);
  } },
  el("label", {}, "Find by", el("select", { name: "by", id: "f-by" },
    ...[[ID, "Record id"], ...fields.map((f) => [f, f === ".Key" ? "Key" : f])].map(([v, text]) => el("option", { value: v, selected: v === by }, text)))),
  el("label", {}, "Value", el("input", { name: "value", id: "f-value", required: true, value })),
  el("button", { id: "f-go" }, "Find"));
  return node;
}

/** @param {Searched} found */
function searched(found) {
  const { micro_batches: n, records } = found.searched;
  return [
    found.left ? `Looking: ${plural(found.left, "micro-batch", "micro-batches")} of the spool to look at.` : null,
    found.more ? "There may be others: the newest are shown." : null,
    n ? `${plural(n, "micro-batch", "micro-batches")} with ${plural(records, "record")} had no index of the field (small ones never have), and ${n === 1 ? "was" : "were"} gone through.` : null,
  ].filter(Boolean).map((text) => el("p", { class: "dim" }, text));
}

// What is wrong with what was looked for; it does not come right by itself, so it is not asked again.
/** @param {Child[]} out @param {string} text @returns {Going} */
const wrong = (out, text) => ({ nodes: [...out, el("p", { class: "first-error", role: "alert", id: "not-found" }, text)], close: () => {} });

/** @param {Route} r @returns {Promise<Child[] | Going>} */
export async function record(r) {
  const graph = await ask(of(r.id, "topology"));
  const id = r.rest[0], by = id ? ID : r.query.get("by") ?? ID, value = id ?? r.query.get("value") ?? "";
  const { fields } = await ask(of(r.id, "records", "find"));
  const out = [...head(r, graph.dag_id), el("h2", {}, "A record's delivery history"), form(r, fields, by, value)];
  try {
    return await found(r, graph.dag_id, out, id, by, value);
  } catch (error) {
    if (error instanceof Refusal && [400, 404, 422].includes(error.status)) return wrong(out, error.message);
    throw error;
  }
}

/** @param {Route} r @param {string} dag @param {Child[]} out @param {string | undefined} id @param {string} by @param {string} value @returns {Promise<Child[] | Going>} */
async function found(r, dag, out, id, by, value) {
  if (!id && by !== ID && value) {
    /** @type {Page<Place> & Searched} */
    const found = await ask(of(r.id, "records", "find"), { field: by, value });
    return [...out, table(["#Micro-batch", "#Record", "Id", "Source", "Partition"],
      found.items.map((p) => [count(p.micro_batch), p.seq, el("a", { href: address([r.id, "record", p.id], { "micro-batch": p.micro_batch }) }, p.id), p.source, p.partition]),
      found.left ? "None yet." : "No record that the spool holds has it, or it is masked."), ...searched(found)];
  }
  if (!id) return out;
  if (!/^[0-9a-f]{8,128}$/i.test(id)) return wrong(out, `“${id}” is no record id: one has 8 to 128 of the digits 0–9 and a–f, as the pages Records and Dead letters show it.`);
  /** @type {{ places: Place[], attempts: Json[], left: number }} */
  const found = await ask(of(r.id, "records", id, "history"), { micro_batch: r.query.get("micro-batch") });
  return [...out, ...found.places.map((place) => waterfall(place, dag)),
    found.left ? el("p", { class: "dim" }, `Looking: ${plural(found.left, "micro-batch", "micro-batches")} of the spool to go through.`) : null,
    found.places.length && !found.attempts.length ? el("p", { class: "dim" }, "No attempt was made at it.") : null];
}
