// Small parts of a page: elements, figures, tables. Text is only ever set as text, never as markup.

export const ROOT = location.pathname.replace(/\/conduit\/pages\/.*$/, "");
const number = new Intl.NumberFormat("en");

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name @param {Record<string, any>} [attributes] @param {Child[]} children
 */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false && value !== null) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Sets a text, if it is another one.
/** @param {Node} node @param {string} text */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {number | null | undefined} n */
export const count = (n) => (n === null || n === undefined ? "–" : number.format(n));
/** @param {string} status */
export const badge = (status) => el("span", { class: `badge ${status}` }, status);
/** @param {number | null | undefined} seconds */
export const when = (seconds) => (seconds ? new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) : "–");
/** @param {string} text */
export const at = (text) => text.replace("T", " ").slice(0, 19);

/** @param {number} n */
export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return `${n < 10 && unit ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

/** @param {number} seconds */
export function age(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}

/** @param {string[]} heads @param {any[][]} rows @param {string} [empty] */
export function table(heads, rows, empty) {
  const head = heads.map((h) => el("th", { scope: "col", class: h.startsWith("#") ? "number" : null }, h.replace("#", "")));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, n) => {
      const error = cell?.error !== undefined;
      return el("td", { class: error ? "error" : heads[n].startsWith("#") ? "number" : null }, error ? cell.error : cell ?? "–");
    })));
  if (!body.length) body.push(el("tr", {}, el("td", { colspan: heads.length, class: "dim" }, empty)));
  // The keyboard scrolls one without links only if it can have the focus.
  const plain = body.some((row) => row.querySelector("a, button")) ? {} : { tabindex: 0, role: "group", "aria-label": `Table: ${heads.join(", ").replaceAll("#", "")}` };
  return el("div", { class: "scroll", ...plain }, el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
}

/** @param {number} n @param {string} one */
export const plural = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

// Airflow's frames may not navigate the top; its own router follows the history.
/** @param {string} path @param {string} text */
export function outward(path, text) {
  return el("a", { href: ROOT + path, target: "_top", onclick: (/** @type {MouseEvent} */ event) => {
    if (window.parent === window || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    parent.history.pushState(null, "", ROOT + path);
    parent.dispatchEvent(new PopStateEvent("popstate"));
  } }, text);
}
