// The pipelines, what needs somebody first.
import { address, filters, PAGE, pager } from "./address.js";
import { ask } from "./ask.js";
import { bars } from "./bars.js";
import { top } from "./head.js";
import { age, badge, count, el, plural, table, when } from "./parts.js";
import { plot } from "./plot.js";

const SORTS = ["attention", "id"];
/** @type {ReturnType<typeof over> | null} */
let chart = null; // it lives on, with what it is zoomed to, while the page around it is drawn again

// Records in each five minutes of the last two hours, as bars.
/** @param {number[]} recent */
const sparkline = (recent) => bars(recent, `${plural(recent.reduce((a, b) => a + b, 0), "record")} in the last two hours`);

/** @param {Listed} p */
function needs(p) {
  if (p.error) return { error: `${p.error.node}: ${p.error.error}` };
  const said = [];
  if (p.late.length) said.push(`late: ${p.late.join(", ")}`);
  if (p.stopped.length) said.push(`stopped: ${p.stopped.join(", ")}`);
  if (p.down.length) said.push(`does not answer: ${p.down.join(", ")}`);
  if (p.dead) said.push(plural(p.dead, "dead letter"));
  return { error: said.join("; ") };
}

// The destination nearest to its deadline, or the slowest one: how long its oldest record waits, and the deadline.
/** @param {Listed} p @returns {Child[]} */
function oldest(p) {
  const of = p.slowest, deadline = of ? of.deadline : p.deadline;
  return [of ? el("span", { title: of.id }, age(of.age)) : "–", deadline === null ? "–" : age(deadline)];
}

// What all of them read, zoomed by drag or keyboard.
function over() {
  let /** @type {[number[], number[]]} */ found = [[], []], /** @type {Interval} */ interval = null;
  const all = el("button", { id: "zoom-all", disabled: true, onclick: () => zoom(null) }, "Show all");
  const { node, set: draw } = plot({ id: "all", title: "Read by all of them, records in five minutes", lines: [{ label: "read", color: 0, step: true }], zoom });

  /** @param {Interval} to */
  function zoom(to) {
    if (JSON.stringify(to) === JSON.stringify(interval)) return;
    interval = to;
    all.disabled = to === null;
    draw(found, interval);
  }

  /** @param {Summary} summary */
  function set({ at, recent }) {
    const step = 300, last = Math.floor(at / step) * step;
    found = [recent.map((_, n) => last - (recent.length - 1 - n) * step), recent];
    if (interval && interval[1] <= found[0][0]) zoom(null); // it has moved out of what is known
    else draw(found, interval);
  }

  node.querySelector("figcaption")?.append(" ", all);
  return { node, set };
}

/** @param {Summary} summary */
function overall(summary) {
  chart ??= over();
  chart.set(summary);
  return chart.node;
}

/** @param {Route} r @returns {Promise<Child[]>} */
export async function list(r) {
  const of = (/** @type {string} */ name) => r.query.get(name);
  /** @type {Page<Listed> & { summary: Summary | null }} */
  const found = await ask("", { q: of("q"), status: of("status"), attention: of("attention") === "yes" ? true : null,
    sort: of("sort") ?? "attention", offset: of("offset"), limit: PAGE });
  const { summary } = found;
  return [
    ...top(r, "Pipelines", summary && `${plural(summary.pipelines, "pipeline")}, ${summary.attention ? plural(summary.attention, "needs", "need") + " somebody" : "all is well"}`),
    summary ? overall(summary) : null,
    filters(r, [["q", "Id"], ["status", "Status", ["running", "recovering", "degraded", "stopping", "stopped"]],
      ["attention", "Needs somebody", ["yes"]], ["sort", "Sorted by", SORTS]]),
    table(["Pipeline", "Status", "Since (UTC)", "Last two hours", "#Records waiting", "#Oldest", "#Deadline", "#Dead", "What is wrong"],
      found.items.map((p) => [
        el("a", { href: address([p.id]), id: `p-${p.id}` }, p.id), badge(p.status), when(p.since), sparkline(p.recent), p.waiting === null ? plural(p.behind, "micro-batch", "micro-batches") : count(p.waiting),
        ...oldest(p),
        p.dead ? el("a", { href: address([p.id, "dead-letters"]) }, count(p.dead)) : "0", needs(p),
      ]), "No pipeline here, or none that you may see. A file with errors shows in `conduit validate`."),
    pager(found, r),
  ];
}
