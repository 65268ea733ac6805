// A record's delivery history.
import { address } from "./address.js";
import { ask, of } from "./ask.js";
import { head } from "./head.js";
import { at, count, el, plural, table } from "./parts.js";

export async function record(r) {
  const graph = await ask(of(r.id, "topology"));
  const id = r.rest[0];
  const form = el("form", { class: "head", onsubmit: (event) => {
    event.preventDefault();
    location.hash = address([r.id, "record", new FormData(form).get("id").trim()]);
  } }, el("label", {}, "Record id", el("input", { name: "id", id: "f-id", size: 44, required: true, value: id ?? "" })), el("button", { id: "f-go" }, "Show"));
  const out = [...head(r, graph.dag_id), el("h2", {}, "A record's delivery history"), form];
  if (!id) return out;
  const found = await ask(of(r.id, "records", id, "history"));
  return [...out,
    ...found.places.map((p) => el("p", { class: "dim" }, `Micro-batch ${count(p.micro_batch)}, number ${p.seq}, from ${p.source} ${p.partition}: ${p.state} as a whole`)),
    table(["Ended (UTC)", "Destination", "Outcome", "Status", "#Seconds", "Class", "Error", "Run"],
      found.attempts.map((a) => [at(a.ended), a.destination, a.outcome, a.status, a.seconds?.toFixed(2), a.error_class, { error: a.error ?? "" }, a.run]),
      found.left ? `Looking: ${plural(found.left, "micro-batch")} of the spool to go through.` : "No attempt was made at it.")];
}
