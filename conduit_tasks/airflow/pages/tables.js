// A table whose cells change in place: nothing moves, and what has the focus keeps it.
import { el, put } from "./parts.js";

// `heads`: "#" before those of figures. `ids`: of the rows. A cell: a text, an element, or a function that fills the cell.
/** @param {string[]} heads @param {string[]} ids @param {string} [caption] */
export function liveTable(heads, ids, caption) {
  /** @type {Map<string, HTMLElement[]>} */
  const cells = new Map();
  const body = ids.map((id) => {
    const row = heads.map((h, n) => el(n ? "td" : "th", { class: h.startsWith("#") ? "number" : null, scope: n ? null : "row" }));
    cells.set(id, row);
    return el("tr", {}, ...row);
  });
  // By its class a column has its width.
  const kind = (/** @type {string} */ h) => `${h.startsWith("#") ? "number " : ""}c-${h.replace("#", "").toLowerCase().replace(/[^a-z]+/g, "-")}`;
  const head = el("tr", {}, ...heads.map((h) => el("th", { scope: "col", class: kind(h) }, h.replace("#", ""))));
  const node = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption ?? "As a table" },
    el("table", { class: "live" }, el("thead", {}, head), el("tbody", {}, ...body)));

  /** @param {string} id @param {Cell[]} values */
  function set(id, values) {
    cells.get(id)?.forEach((cell, n) => {
      const value = values[n] ?? "–";
      if (typeof value === "function") value(cell);
      else if (!(value instanceof Element)) { put(cell, String(value)); cell.title = String(value); }
      else if (cell.firstElementChild?.outerHTML !== value.outerHTML) {
        const focused = cell.contains(document.activeElement);
        cell.replaceChildren(value);
        if (focused) value.focus({ preventScroll: true });
      }
    });
  }

  return { node, set };
}
