// The form that replays an interval, and what became of the last ones. A run of Airflow reads and sends.
import { ask, of } from "./ask.js";
import { head, said } from "./head.js";
import { count, el, outward, table } from "./parts.js";

/** @type {Record<string, { from: string, to: string, what: string, destinations: string[] }>} */
const given = {}; // by pipeline: what stands in the form, which is drawn again with every look

/** @param {Route} r @returns {Promise<Child[]>} */
export async function replays(r) {
  /** @type {[Graph, Page<Replayed>]} */
  const [graph, found] = await Promise.all([ask(of(r.id, "topology")), ask(of(r.id, "replays"))]);
  const words = (given[r.id] ??= { from: "", to: "", what: "missing", destinations: [] });
  const form = el("form", { class: "head", id: "f-replay", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); send(false); }, oninput: () => {
    const data = new FormData(form);
    Object.assign(words, Object.fromEntries(["from", "to", "what"].map((name) => [name, data.get(name)])), { destinations: data.getAll("destinations") });
  } });

  /** @param {boolean} dry */
  async function send(dry) {
    if (!form.reportValidity()) return;
    const to = words.destinations.length ? words.destinations.join(", ") : "all destinations";
    const what = `${words.what} from ${words.from} to ${words.to}, to ${to}`;
    if (!dry && !confirm(`Replay ${what}?`)) return;
    try {
      const done = await ask(of(r.id, "replay"), {}, { ...words, dry_run: dry });
      said.replaceChildren(dry ? `Being counted: ${what}. ` : `Being replayed: ${what}. `, itsRun(done.dag_id, done.run_id, "Its run"));
    } catch (error) {
      said.textContent = `It was refused: ${error.message}`;
    }
  }

  const itsRun = (/** @type {string} */ dag, /** @type {string} */ run, /** @type {string} */ text) => outward(`/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`, text);
  const field = (/** @type {"from" | "to"} */ name, /** @type {string} */ text) => el("label", {}, text, el("input", { name, id: `f-${name}`, required: true, value: words[name],
    placeholder: "2013-03-01T00:00" }));
  form.append(
    field("from", "From (UTC)"), field("to", "To, exclusive (UTC)"),
    el("label", {}, "What", el("select", { name: "what", id: "f-what" }, ...["missing", "failed", "all"].map((o) =>
      el("option", { value: o, selected: o === words.what }, o)))),
    el("fieldset", {}, el("legend", {}, "Destinations (none chosen: all)"), ...graph.destinations.map((d) => el("label", {},
      el("input", { type: "checkbox", name: "destinations", value: d.id, id: `d-${d.id}`, checked: words.destinations.includes(d.id) }), d.id))));

  const result = (/** @type {Replayed} */ run) => {
    const parts = Object.entries(run.found?.would ?? {}).map(([id, n]) => `${id}: ${count(n)} would go`);
    for (const [id, o] of Object.entries(run.sent))
      parts.push(`${id}: ${count(o.delivered)} delivered${o.dead ? `, ${count(o.dead)} dead` : ""}${o.filtered ? `, ${count(o.filtered)} filtered` : ""}`);
    return parts.join("; ") || "–";
  };
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, "Replay an interval"),
    el("p", { class: "dim" }, "The records of these event times go again, and live deliveries go on. Missing: what a destination never got; "
      + "failed: its dead letters; all: everything."),
    form,
    // Outside of the form: while something in it has the focus, the page is not drawn again.
    el("div", { class: "head" },
      el("button", { id: "would", onclick: () => send(true) }, "What would go?"),
      el("button", { id: "replay", form: "f-replay" }, "Replay")),
    table(["Run", "State", "From", "Before", "What", "To", "#Read", "Result"],
      found.items.map((run) => [itsRun(run.dag_id, run.run_id, run.run_id), run.dry_run ? `${run.state}, dry run` : run.state, run.from, run.to,
        run.what, run.destinations.join(", ") || "all", count(run.found?.read), result(run)]), "Nothing was replayed yet."),
  ];
}
