// The pages: what the address names is shown, and shown again and again.
import { address, framedFor, route } from "./address.js";
import { allIssues } from "./all-issues.js";
import { ask } from "./ask.js";
import { microBatches } from "./batches.js";
import { said, titled, trouble } from "./head.js";
import { issues } from "./issues.js";
import { deadLetter, deadLetters } from "./letters.js";
import { list } from "./list.js";
import { el } from "./parts.js";
import { overview } from "./pipeline.js";
import { record } from "./record.js";
import { records } from "./records.js";
import { replays } from "./replays.js";
import { trial } from "./try.js";

const POLL = 3000;
const page = /** @type {HTMLElement} */ (document.getElementById("page"));

/** @type {Record<string, View>} */
const VIEWS = { "": overview, "micro-batches": microBatches, "dead-letters": deadLetters, "dead-letter": deadLetter, issues, record, records, replay: replays, try: trial };

/** Of all pipelines together. @type {Record<string, View>} */
const OF_ALL = { "": list, issues: allIssues };

let turn = 0, timer = 0, shown = "", /** @type {(() => void) | null} */ close = null; // `close`: of a view that is live by itself

async function show() {
  clearTimeout(timer);
  const mine = ++turn;
  if (shown !== location.hash) { close?.(); close = null; }
  let still = false;
  try {
    const r = route();
    /** @type {View | undefined} */
    const view = (r.id ? VIEWS : OF_ALL)[r.view];
    titled(r);
    if (!view) throw new Error(`There is no page ${r.view}; go back to the list of pipelines.`);
    still = Boolean(view.still); // it costs too much to be looked at again and again, or holds what is being written
    const found = await view(r), going = Array.isArray(found) ? null : found;
    const nodes = (Array.isArray(found) ? found : found.nodes).filter((node) => node !== null && node !== undefined);
    if (mine !== turn) { going?.close(); return; }
    close?.();
    close = going && going.close;
    const typing = shown === location.hash && document.activeElement?.closest("form");
    // What is being typed, marked or asked must not be swept away; the next turn shows it.
    if (!typing && !(shown === location.hash && String(getSelection()))) {
      const focused = document.activeElement?.id;
      const places = [...page.querySelectorAll(".scroll, pre")], within = places.findIndex((node) => node === document.activeElement);
      const scrolled = places.map((node) => [node.scrollLeft, node.scrollTop]);
      page.replaceChildren(...nodes);
      if (shown === location.hash)
        page.querySelectorAll(".scroll, pre").forEach((node, n) => scrolled[n] && ([node.scrollLeft, node.scrollTop] = scrolled[n]));
      if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
      else if (within >= 0 && shown === location.hash) /** @type {HTMLElement[]} */ ([...page.querySelectorAll(".scroll, pre")])[within]?.focus({ preventScroll: true });
      shown = location.hash;
    }
    trouble(null);
  } catch (error) {
    if (mine !== turn) return;
    trouble(error.message);
    // A value that cannot be one does not become one later.
    still ||= [400, 422].includes(error.status);
    if (shown !== location.hash) page.replaceChildren(el("p", {}, el("a", { href: "#/" }, "All pipelines")));
  }
  if (mine === turn && !still && !close && !document.hidden) timer = setTimeout(show, POLL);
}

// ---- light and dark: Airflow's own choice where we are in its frame, else the system's

function followTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let outer = null;
  try { if (window.parent !== window) outer = parent.document.documentElement; } catch { outer = null; }
  const apply = () => {
    document.documentElement.classList.toggle("dark", outer ? outer.classList.contains("dark") : system.matches);
    document.dispatchEvent(new Event("conduit:theme"));
  };
  if (outer) new MutationObserver(apply).observe(outer, { attributes: true, attributeFilter: ["class"] });
  system.addEventListener("change", apply);
  apply();
}

async function begin() {
  followTheme();
  if (framedFor && !location.hash.replace(/^#\/?/, "")) {
    try {
      const found = await ask("", { dag: framedFor, limit: 1 });
      if (found.items.length) history.replaceState(null, "", address([found.items[0].id]));
    } catch { /* `show` says what is wrong */ }
  }
  addEventListener("hashchange", () => { said.textContent = ""; page.focus({ preventScroll: true }); show(); });
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden && !close) show();
  });
  document.addEventListener("conduit:again", show);
  show();
}

begin();
