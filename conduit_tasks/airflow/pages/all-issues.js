// The issues of all pipelines that somebody may see, each a click away from what can be done about it.
import { address, filters, PAGE, pager } from "./address.js";
import { askOfAll } from "./ask.js";
import { byDay } from "./bars.js";
import { goOn } from "./going-on.js";
import { top } from "./head.js";
import { at, count, el, plural, table } from "./parts.js";

const STATES = ["open", "acknowledged", "muted", "resolved"];

// What is missing from the list, and why.
/** @param {AllIssues} found */
function missing(found) {
  return [
    found.pending ? `The dead letters of ${plural(found.pending, "more pipeline")} are being looked through${found.files ? `, ${plural(found.files, "file")} of them known` : ""}: their issues come as they are found.` : null,
    found.beyond ? `${plural(found.beyond, "more issue")}: a filter finds them.` : null,
    found.withheld ? `${plural(found.withheld, "more pipeline")} with failures: you may not read the logs of ${found.withheld === 1 ? "its" : "their"} tasks.` : null,
    ...Object.entries(found.unread).map(([id, why]) => `The dead letters of ${id} cannot be read: ${why}`),
  ].filter(Boolean).map((text) => el("p", { class: "missing" }, text));
}

/** @param {Route} r @returns {Promise<Child[]>} */
export async function allIssues(r) {
  const of = (/** @type {string} */ name) => r.query.get(name);
  const found = await askOfAll({ q: of("q"), state: of("state"), kind: of("kind"), order: of("order"), offset: of("offset"), limit: PAGE });
  goOn(found.pending + found.files);
  const soFar = found.pending ? " so far" : "";
  return [
    ...top(r, "Issues", found.open ? `${plural(found.open, "open issue")} in ${plural(found.pipelines, "pipeline")}${soFar}` : `no issue is open${soFar}`),
    filters(r, [["q", "Pipeline or class"], ["state", "State", STATES], ["kind", "Of", ["dead letters", "task"]], ["order", "Sorted by", ["most"], "newest"]]),
    ...missing(found),
    table(["Pipeline", "Issue", "State", "#Failures", "#Keys", "Last (UTC)", "14 days", "What fails"],
      found.items.map((issue) => [
        el("a", { href: address([issue.pipeline]) }, issue.pipeline),
        el("a", { href: address([issue.pipeline, "issues"], { issue: issue.id }), id: `i-${issue.pipeline}-${issue.id}` }, `${issue.node}: ${issue.error_class}`),
        el("span", { class: `badge ${issue.state === "open" ? "degraded" : "stopped"}` }, issue.state),
        count(issue.count), issue.kind === "task" ? "–" : count(issue.affected), at(issue.last), byDay(issue.days), { error: issue.sample.error },
      ]), "None with this filter in the pipelines that you may see."),
    pager(found, r),
  ];
}
