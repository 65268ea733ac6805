// A record is tried: pasted, or a dead letter, or one of the spool; with the file as it is, or as it is changed here.
import { ask, of } from "./ask.js";
import { head, said } from "./head.js";
import { el } from "./parts.js";
import { steps } from "./steps.js";

const EXAMPLE = JSON.stringify({ metadata: {}, key: null, payload: { after: { name: "value" } } }, null, 2);
/** @type {Record<string, { record: string, node: string, file: string, original: string | null, pick?: string, at?: string, why?: string, answer?: Tried | null }>} */
const given = {}; // by pipeline: what stands in the form, and the last answer

const keyOf = (/** @type {Letter} */ d) => [d.destination, d.epoch, d.micro_batch, d.seq, d.ord].join("/");

/** @param {Route} r @returns {Promise<Child[]>} */
export async function trial(r) {
  /** @type {[Graph, Page<Letter>]} */
  const [graph, letters] = await Promise.all([ask(of(r.id, "topology")), ask(of(r.id, "dead-letters"), { limit: 50 })]);
  const words = (given[r.id] ??= { record: EXAMPLE, node: "", file: "", original: null });
  const place = r.query.get("place") ?? "", letter = r.query.get("letter") ?? "";
  if (words.original === null) {
    const file = await ask(of(r.id, "file")).catch((error) => ({ text: "", why: error.message }));
    Object.assign(words, { original: file.text, file: file.text, why: file.why });
  }
  const nodes = [...graph.sources.map((s) => `sources.${s.id}`), "processors", ...graph.destinations.map((d) => `destinations.${d.id}`)];
  const option = (/** @type {string} */ value, /** @type {string} */ text, /** @type {string | undefined} */ chosen) => el("option", { value, selected: value === chosen }, text);
  // What was chosen and answered here stays while the page is drawn again, and goes with the address.
  if (words.at !== location.hash) Object.assign(words, { at: location.hash, pick: place ? "place" : letter, answer: null });
  const known = letters.items.some((d) => keyOf(d) === letter);
  const pick = el("select", { id: "f-pick", name: "pick" },
    option("", "the text below", words.pick),
    place ? option("place", `${place} of the spool`, words.pick) : null,
    letter && !known ? option(letter, `dead letter ${letter}`, words.pick) : null,
    ...letters.items.map((d) => option(keyOf(d), `dead letter ${keyOf(d)}: ${d.error_class}`, words.pick)));
  const enter = el("select", { id: "f-node", name: "node" }, option("", graph.sources.length > 1 ? "as the record says" : "the source, or where it was", words.node),
    ...nodes.map((node) => option(node, node, words.node)));
  const record = el("textarea", { id: "f-record", rows: 12, spellcheck: "false" });
  const file = el("textarea", { id: "f-file", rows: 24, spellcheck: "false", wrap: "off" });
  record.value = words.record;
  file.value = words.file;
  const out = el("section", { id: "steps", "aria-label": "Steps", "aria-live": "polite" });

  const find = (/** @type {At} */ { line, column }) => {
    const start = file.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0) + column - 1;
    const end = file.value.indexOf("\n", start);
    file.focus();
    file.setSelectionRange(start, end < 0 ? file.value.length : end);
    file.scrollTop = Math.max(0, (line - 5) * (file.scrollHeight / Math.max(1, file.value.split("\n").length)));
  };
  const answer = (/** @type {Tried} */ found) => out.replaceChildren(...steps(found, words.file ? find : null));
  record.disabled = Boolean(pick.value);
  const keep = () => {
    record.disabled = Boolean(pick.value);
    Object.assign(words, { record: record.value, file: file.value, node: enter.value, pick: pick.value });
  };

  /** @param {Event} event */
  async function send(event) {
    event.preventDefault();
    const what = pick.value === "place" ? { place } : pick.value ? { letter: pick.value } : { record: record.value };
    const body = { ...what, node: enter.value, ...(file.value && file.value !== words.original ? { file: file.value } : {}) };
    go.disabled = true;
    said.textContent = "Being tried …";
    try {
      /** @type {Tried} */
      const found = await ask(of(r.id, "records", "try"), {}, body);
      words.answer = found;
      const failed = found.steps.filter((step) => step.outcome === "failed").length;
      said.textContent = found.error ? "It could not be tried." : failed ? "A step fails." : "No step fails.";
      answer(found);
    } catch (error) {
      said.textContent = `It was refused: ${error.message}`;
    }
    go.disabled = false;
  }

  const go = el("button", { id: "try" }, "Try");
  const back = el("button", { id: "f-back", type: "button", onclick: () => { file.value = words.file = words.original ?? ""; } }, "The file in force");
  if (words.answer) answer(words.answer);
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, "Try a record"),
    el("p", { class: "dim" }, "What the processors and triggers make of it. Nothing is sent; calls over the network, and what needs Spark, are left out. "
      + "From a changed text only that runs which depends on the record alone, or is in the file in force as well."),
    el("form", { id: "f-try", onsubmit: send, oninput: keep },
      el("div", { class: "head" }, el("label", {}, "Record", pick), el("label", {}, "Enters at", enter), go),
      el("div", { class: "two" },
        el("label", { class: "tall" }, "OpenCDC, JSON", record),
        el("label", { class: "tall" }, words.why ? `The file is not shown (${words.why}): paste a changed one` : "The pipeline's file", file))),
    words.original ? back : null,
    out,
  ];
}
trial.still = true;
