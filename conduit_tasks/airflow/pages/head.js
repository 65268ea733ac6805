// The head of a pipeline's pages, and the line that says what a button did.
import { address, framedFor } from "./address.js";
import { badge, el, outward } from "./parts.js";

export const said = /** @type {HTMLElement} */ (document.getElementById("said"));
const problem = /** @type {HTMLElement} */ (document.getElementById("problem"));

// Says what is wrong with the page itself; null: nothing.
/** @param {string | null} text */
export function trouble(text) {
  problem.hidden = !text;
  if (text && problem.textContent !== text) problem.textContent = text;
}

/** @type {[view: string, text: string][]} */
const VIEWS = [["", "Overview"], ["micro-batches", "Micro-batches"], ["issues", "Issues"], ["dead-letters", "Dead letters"],
  ["records", "Records"], ["try", "Try"], ["replay", "Replay"], ["record", "A record"]];

// Names the pipeline and the view in the title of the window.
/** @param {Route} r */
export function titled(r) {
  const view = r.view === "dead-letter" ? "A dead letter" : VIEWS.find(([name]) => name === r.view)?.[1] ?? "";
  document.title = [r.id || "Pipelines", r.id && view, "Conduit"].filter(Boolean).join(" · ");
}

/** @param {Route} r @param {string} dag @param {string | Element} [status] @returns {Node[]} */
export function head(r, dag, status) {
  return [
    el("div", { class: "head" }, el("h1", {}, r.id), status instanceof Element ? status : status ? badge(status) : null, el("span", { class: "grow" }),
      outward(`/dags/${encodeURIComponent(dag)}`, "Its DAG")),
    el("nav", { "aria-label": "Views" }, framedFor ? null : el("a", { href: "#/" }, "← Pipelines"),
      ...VIEWS.map(([view, text]) => el("a", { href: address([r.id, view].filter(Boolean)), id: `v-${view}`,
        "aria-current": view === r.view ? "page" : null }, text))),
  ];
}
