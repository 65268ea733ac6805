// The pipelines, what needs somebody first.
import { address, filters, PAGE, pager } from "./address.js";
import { ask } from "./ask.js";
import { bars } from "./bars.js";
import { age, badge, count, el, plural, table, when } from "./parts.js";
import { plot } from "./plot.js";

const SORTS = ["attention", "id"];
/** @type {ReturnType<typeof plot> | null} */
let chart = null;

// Records in each five minutes of the last two hours, as bars.
/** @param {number[]} recent */
const sparkline = (recent) => bars(recent, `${plural(recent.reduce((a, b) => a + b, 0), "record")} in the last two hours`);

/** @param {Listed} p */
function needs(p) {
  if (p.error) return { error: `${p.error.node}: ${p.error.error}` };
  const said = [];
  if (p.late.length) said.push(`late: ${p.late.join(", ")}`);
  if (p.stopped.length) said.push(`stopped: ${p.stopped.join(", ")}`);
  return { error: said.join("; ") };
}

/** @param {Summary} summary */
function overall(summary) {
  chart ??= plot({ id: "all", title: "Read by all of them, records in five minutes", lines: [{ label: "read", color: 0, step: true }] });
  const step = 300, last = Math.floor(summary.at / step) * step;
  chart.set([summary.recent.map((_, n) => last - (summary.recent.length - 1 - n) * step), summary.recent], null);
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
    el("div", { class: "head" }, el("h1", {}, "Pipelines"), summary ? el("span", { class: "dim", id: "summary" },
      `${plural(summary.pipelines, "pipeline")}, ${summary.attention ? plural(summary.attention, "needs", "need") + " somebody" : "all is well"}`) : null),
    summary ? overall(summary) : null,
    filters(r, [["q", "Id"], ["status", "Status", ["running", "recovering", "degraded", "stopping", "stopped"]],
      ["attention", "Needs somebody", ["yes"]], ["sort", "Sorted by", SORTS]]),
    table(["Pipeline", "Status", "Since (UTC)", "Last two hours", "#Behind", "#Oldest", "#Deadline", "#Dead", "What is wrong"],
      found.items.map((p) => [
        el("a", { href: address([p.id]), id: `p-${p.id}` }, p.id), badge(p.status), when(p.since), sparkline(p.recent), count(p.behind),
        p.age ? age(p.age) : "–", p.deadline === null ? "–" : age(p.deadline),
        p.dead ? el("a", { href: address([p.id, "dead-letters"]) }, count(p.dead)) : "0", needs(p),
      ]), "No pipeline here, or none that you may see. A file with errors shows in `conduit validate`."),
    pager(found, r),
  ];
}
