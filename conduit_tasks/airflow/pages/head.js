// The head of a pipeline's pages, and the line that says what a button did.
import { address, framedFor } from "./address.js";
import { badge, el, outward } from "./parts.js";

export const said = /** @type {HTMLElement} */ (document.getElementById("said"));

/** @param {Route} r @param {string} dag @param {string} [status] @returns {Node[]} */
export function head(r, dag, status) {
  const views = [["", "Overview"], ["micro-batches", "Micro-batches"], ["issues", "Issues"], ["dead-letters", "Dead letters"],
    ["records", "Records"], ["try", "Try"], ["replay", "Replay"], ["record", "A record"]];
  return [
    el("div", { class: "head" }, el("h1", {}, r.id), status ? badge(status) : null, el("span", { class: "grow" }),
      outward(`/dags/${encodeURIComponent(dag)}`, "Its DAG")),
    el("nav", { "aria-label": "Views" }, framedFor ? null : el("a", { href: "#/" }, "← Pipelines"),
      ...views.map(([view, text]) => el("a", { href: address([r.id, view].filter(Boolean)), id: `v-${view}`,
        "aria-current": view === r.view ? "page" : null }, text))),
  ];
}
