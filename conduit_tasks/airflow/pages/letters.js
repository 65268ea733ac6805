// Dead letters: found by filter, looked at, sent again.
import { address, filters, PAGE, pager } from "./address.js";
import { ask, of } from "./ask.js";
import { reading } from "./going-on.js";
import { head, said } from "./head.js";
import { at, count, el, outward, plural, table } from "./parts.js";
import { follow, sending } from "./sending.js";

// What the filters choose goes again; a run of Airflow sends it.
/** @param {Route} r @param {boolean} dry @param {Json} [more] */
export async function redrive(r, dry, more = {}) {
  const chosen = (/** @type {string} */ name) => r.query.get(name) || null;
  const body = { dry_run: dry, destination: chosen("destination"), since: chosen("since"), until: chosen("until"),
    issues: chosen("issue") ? [chosen("issue")] : [],
    classes: chosen("error_class") ? [chosen("error_class")] : [], keys: chosen("key") ? [chosen("key")] : [], ...more };
  /** @param {{ shares: { destination: string, letters: number, parked: number }[] }} found */
  const told = (found) => found.shares.map((s) =>
    `${s.destination}: ${plural(s.letters, "dead letter")}${s.parked ? ` and ${plural(s.parked, "parked record")}` : ""}`).join("; ") || "nothing";
  try {
    const look = await ask(of(r.id, "dead-letters", "redrive"), {}, { ...body, dry_run: true });
    const cannot = look.cannot.map((/** @type {string} */ sentence) => ` ${sentence}.`).join("");
    if (dry || !look.shares.length) { said.textContent = `Would be sent again: ${told(look)}.${cannot}`; return; }
    if (!confirm(`Send again ${told(look)}?${cannot}`)) return;
    const done = await ask(of(r.id, "dead-letters", "redrive"), {}, body);
    await follow(r.id, { destination: body.destination, since: body.since, until: body.until, issue: body.issues[0], error_class: body.classes[0], key: body.keys[0] }, done);
    said.replaceChildren(`Being sent again: ${told(done)}. `,
      outward(`/dags/${encodeURIComponent(done.dag_id)}/runs/${encodeURIComponent(done.run_id)}`, "Its run"));
    document.dispatchEvent(new Event("conduit:again"));
  } catch (error) {
    said.textContent = `It was refused: ${error.message}`;
  }
}

/** @param {Route} r @returns {Promise<Child[]>} */
export async function deadLetters(r) {
  const names = ["destination", "error_class", "since", "until", "key", "issue"];
  const query = Object.fromEntries(names.map((name) => [name, r.query.get(name)]));
  /** @type {[Graph, Page<Letter> & { classes: Record<string, number>; pending: number }, Child]} */
  const [graph, found, under] = await Promise.all([
    ask(of(r.id, "topology")), ask(of(r.id, "dead-letters"), { ...query, offset: r.query.get("offset"), limit: PAGE }), sending(r.id)]);
  const classes = Object.entries(found.classes).map(([name, n]) => `${count(n)} × ${name}`).join(", ");
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, "Dead letters"),
    under,
    filters(r, [["destination", "Destination", [...graph.destinations.map((d) => d.id), "_pipeline"]], ["error_class", "Class"],
      ["since", "From (UTC)", "date"], ["until", "Before", "date"], ["key", "Key"], ["issue", "Issue"]]),
    reading(found.pending),
    el("p", { class: "dim" }, classes || (found.pending ? "Nothing so far." : "Nothing is dead here.")),
    el("div", { class: "head" },
      el("button", { id: "would", disabled: !found.total, onclick: () => redrive(r, true) }, "What would be sent again?"),
      el("button", { id: "redrive", disabled: !found.total, onclick: () => redrive(r, false) }, "Send these again")),
    table(["Destination", "#Micro-batch", "#Record", "At (UTC)", "#Attempts", "Class", "Error", "Key"],
      found.items.map((d) => [d.destination, count(d.micro_batch),
        el("a", { href: address([r.id, "dead-letter", d.destination, d.epoch, d.micro_batch, d.seq, d.ord]) }, d.ord ? `${d.seq}.${d.ord}` : `${d.seq}`),
        at(d.at), count(d.attempts), d.error_class, { error: d.error }, d.key]), "None with this filter."),
    pager(found, r),
  ];
}

/** @param {Route} r @returns {Promise<Child[]>} */
export async function deadLetter(r) {
  /** @type {[Graph, Letter]} */
  const [graph, d] = await Promise.all([ask(of(r.id, "topology")), ask(of(r.id, "dead-letters", ...r.rest))]);
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, `Dead letter of ${d.destination}, micro-batch ${count(d.micro_batch)}, record ${d.seq}`),
    el("p", { class: "first-error" }, `${d.error_class}, ${plural(d.attempts, "attempt")}, ${at(d.at)}, at ${d.node}: ${d.error}`),
    el("p", {}, el("a", { href: address([r.id, "record", d.id]) }, "Its delivery history"), " · ",
      el("a", { href: address([r.id, "try"], { letter: r.rest.join("/") }), id: "try-it" }, "Try it"), ` · ${d.connector}, partition ${d.partition}`),
    el("pre", { tabindex: 0, "aria-label": "The record" }, JSON.stringify(d.record, null, 2)),
  ];
}
