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

/** @param {Route} r @param {string} dag @param {string | Element} [status] @returns {Node[]} */
export function head(r, dag, status) {
  const views = [["", "Overview"], ["micro-batches", "Micro-batches"], ["issues", "Issues"], ["dead-letters", "Dead letters"],
    ["records", "Records"], ["try", "Try"], ["replay", "Replay"], ["record", "A record"]];
  return [
    el("div", { class: "head" }, el("h1", {}, r.id), status instanceof Element ? status : status ? badge(status) : null, el("span", { class: "grow" }),
      outward(`/dags/${encodeURIComponent(dag)}`, "Its DAG")),
    el("nav", { "aria-label": "Views" }, framedFor ? null : el("a", { href: "#/" }, "← Pipelines"),
      ...views.map(([view, text]) => el("a", { href: address([r.id, view].filter(Boolean)), id: `v-${view}`,
        "aria-current": view === r.view ? "page" : null }, text))),
  ];
}
