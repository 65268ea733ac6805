// What became of a record at each processor, trigger and destination.
import { lines, sideBySide } from "./diff.js";
import { el, plural } from "./parts.js";

/** @type {Record<string, string>} */
const KIND = { failed: "degraded", "left out": "recovering", filtered: "stopped", "not wanted": "stopped", skipped: "stopped", unchanged: "stopped" };

// The expression with the part at fault marked.
/** @param {Fault} fault */
function marked(fault) {
  const all = fault.expression.split("\n"), at = (fault.line ?? 1) - 1;
  const from = fault.column ? fault.column - 1 : 0, line = all[at] ?? "";
  const whole = fault.line === null ? fault.expression : line;
  return el("pre", { class: "fault", tabindex: 0, "aria-label": `The expression at fault, ${fault.key}` },
    fault.line === null ? "" : [...all.slice(0, at), line.slice(0, from)].join("\n"),
    el("mark", {}, whole.slice(from) || " "),
    fault.line === null || at + 1 >= all.length ? "" : "\n" + all.slice(at + 1).join("\n"));
}

/** @param {Step["filters"][0]} one */
function filter(one) {
  const seen = Object.entries(one.attributes).map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join(", ");
  return el("p", {}, el("span", { class: one.matches ? "running" : "degraded" }, one.matches ? "✓ " : "✗ "), el("code", {}, JSON.stringify(one.filter)),
    one.error ? ` ${one.error}` : "", el("span", { class: "dim" }, ` the record has ${seen || "no attribute"}`));
}

/** @param {Step} step @param {((at: At) => void) | null} find @returns {Child[]} */
function body(step, find) {
  const { place } = step;
  if (step.outcome === "failed") return [
    el("p", { class: "error" }, `${step.error_class}: ${step.error}`),
    place ? el("p", {}, find ? el("button", { class: "place", onclick: () => find(place) }, `Line ${place.line}, column ${place.column}`)
      : `Line ${place.line}, column ${place.column} of the file`, step.fault ? `, ${step.fault.key}:` : "") : null,
    step.fault ? marked(step.fault) : null];
  if (step.step === "trigger") return step.filters.length ? step.filters.map(filter) : [el("p", { class: "dim" }, "It has no filters: it wants every record.")];
  if (step.step === "sent") return [el("pre", { tabindex: 0, "aria-label": "The record as it would be sent" }, lines(step.after).join("\n"))];
  if (step.outcome === "left out") return [el("p", { class: "dim" }, `It ${step.why}.`)];
  if (step.outcome === "changed") return [sideBySide(lines(step.before), lines(step.after))];
  return [];
}

/** One step. @param {Step} step @param {((at: At) => void) | null} find @param {string} [id] */
export function one(step, find, id) {
  const count = step.step !== "trigger" && step.after_count && step.after_count !== (step.before_count ?? 1) ? plural(step.after_count, "record") : "";
  return el("article", { class: `step ${step.outcome === "failed" ? "open" : ""}`, id },
    el("div", { class: "head" }, el("strong", {}, step.processor ?? step.step), el("span", { class: "dim" }, [step.node, step.plugin, count].filter(Boolean).join(" · ")),
      el("span", { class: `badge ${KIND[step.outcome] ?? "running"}` }, step.outcome)),
    ...body(step, find).filter(Boolean));
}

/** @param {Tried} found @param {((at: At) => void) | null} find */
export function steps(found, find) {
  const shown = found.steps.map((step, n) => one(step, find, `step-${n}`));
  if (found.error) shown.unshift(el("p", { class: "first-error", id: "try-error" }, found.error));
  for (const one of found.findings.slice(1))
    shown.push(el("p", { class: "dim" }, `${one.line}:${one.column}: ${one.severity} ${one.code} ${one.message}`));
  if (found.cut) shown.push(el("p", { class: "dim" }, "Long texts and lists are cut."));
  return shown;
}
