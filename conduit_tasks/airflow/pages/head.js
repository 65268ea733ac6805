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
  document.title = [r.id || (r.view ? "" : "Pipelines"), (r.id || r.view) && view, "Conduit"].filter(Boolean).join(" · ");
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

// The head of what is shown of all pipelines together.
/** @param {Route} r @param {string} title @param {string | null} [said] @returns {Node[]} */
export function top(r, title, said) {
  const link = (/** @type {string} */ view, /** @type {string} */ href, /** @type {string} */ text) =>
    el("a", { href, id: `v-${view || "pipelines"}`, "aria-current": view === r.view ? "page" : null }, text);
  return [
    el("div", { class: "head" }, el("h1", {}, title), said ? el("span", { class: "dim", id: "summary" }, said) : null),
    el("nav", { "aria-label": "Views" }, link("", "#/", "Pipelines"), link("issues", address(["", "issues"], { state: "open" }), "Issues")),
  ];
}
