// What is shown stands in the address behind "#"; filters of a list, too.
import { count, el } from "./parts.js";

export const PAGE = 50;
export const framedFor = new URLSearchParams(location.search).get("dag");

/** @param {string} part */
function decoded(part) {
  try { return decodeURIComponent(part); } catch { throw new Error(`The address has a part that cannot be read: ${part}. Go back to the list of pipelines.`); }
}

// Raises an error that says what is wrong with the address.
/** @returns {Route} */
export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [id, view = "", ...rest] = path.split("/").map(decoded);
  return { id, view, rest, query: new URLSearchParams(query) };
}

/** @param {(string | number)[]} parts @param {Query} [query] */
export function address(parts, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== 0);
  return `#/${parts.map(encodeURIComponent).join("/")}${kept.length ? `?${new URLSearchParams(kept.map(([name, value]) => [name, String(value)]))}` : ""}`;
}

/** The parts of the address of what is shown. @param {Route} r */
const here = (r) => (r.view ? [r.id, r.view] : [r.id].filter(Boolean));

// Beyond the end it goes to the last page: what has come by then is not shown.
/** @param {Page<unknown>} found @param {Route} r */
export function pager(found, r) {
  const place = (/** @type {number} */ offset) => address(here(r), { ...Object.fromEntries(r.query), offset });
  const to = (/** @type {number} */ offset) => () => { location.hash = place(offset); };
  if (found.offset && found.offset >= found.total) {
    history.replaceState(null, "", place(Math.floor(Math.max(0, found.total - 1) / PAGE) * PAGE));
    document.dispatchEvent(new Event("conduit:again"));
  }
  const last = Math.min(found.offset + found.items.length, found.total);
  return el("p", {},
    el("button", { id: "newer", onclick: to(Math.max(0, found.offset - PAGE)), disabled: found.offset === 0 }, "← Previous"), " ",
    el("button", { id: "older", onclick: to(found.offset + PAGE), disabled: last >= found.total }, "Next →"), " ",
    el("span", { class: "dim" }, found.total ? `${count(found.offset + 1)}–${count(last)} of ${count(found.total)}` : "none"));
}

/** What stands in the fields of a form. @param {HTMLFormElement} form @returns {Record<string, string>} */
export const entries = (form) => Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)]));

// Fields of a filter; the server does the filtering.
/** @param {Route} r @param {Field[]} fields */
export function filters(r, fields) {
  const form = el("form", { class: "head", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    location.hash = address(here(r), entries(form));
  } });
  for (const [name, text, options, none = "any"] of fields) {
    const value = r.query.get(name) ?? "";
    const field = Array.isArray(options)
      ? el("select", { name, id: `f-${name}` }, ...["", ...options].map((o) => el("option", { value: o, selected: o === value }, o || none)))
      : el("input", { name, id: `f-${name}`, type: options ?? "search", value });
    form.append(el("label", {}, text, field));
  }
  form.append(el("button", { id: "f-go" }, "Filter"));
  return form;
}
