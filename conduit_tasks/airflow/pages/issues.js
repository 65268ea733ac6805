// Failures of one cause, of records and of tasks, what somebody decided about each, and all of one sent again.
import { address, filters, PAGE, pager } from "./address.js";
import { ask, of } from "./ask.js";
import { byDay } from "./bars.js";
import { reading } from "./going-on.js";
import { head, said } from "./head.js";
import { redrive } from "./letters.js";
import { at, el, outward, plural, table, when } from "./parts.js";
import { sending } from "./sending.js";
import { then } from "./then.js";

/** @type {Record<string, string>} */
const WHAT = { acknowledged: "Acknowledge", muted: "Mute", resolved: "Resolve", open: "Open again" };
/** @type {[text: string, seconds: number | null][]} */
const MUTES = [["an hour", 3600], ["a day", 86400], ["a week", 604800], ["until opened again", null]];
/** @type {Record<string, number>} */
const mutes = {}; // by issue: which of them is chosen, while the page is drawn again and again

/** @param {string} id @param {Issue} issue @param {string} state */
async function decide(id, issue, state) {
  const seconds = state === "muted" ? MUTES[mutes[issue.id] ?? 1][1] : null;
  const until = seconds === null ? null : new Date(Date.now() + 1000 * seconds).toISOString();
  try {
    await ask(of(id, "issues", issue.id), {}, { state, until });
    said.textContent = `${issue.id}: ${state}`;
  } catch (error) {
    said.textContent = `It was refused: ${error.message}`;
  }
  document.dispatchEvent(new Event("conduit:again"));
}

/** @param {Route} r @param {Issue} issue */
function buttons(r, issue) {
  // One that a success has resolved is not decided yet: it may come back.
  const next = issue.state === "open" ? ["acknowledged", "muted", "resolved"] : issue.decision ? ["open"] : ["acknowledged", "muted"];
  return el("div", { class: "head" },
    ...next.flatMap((state) => [state === "muted" ? muteFor(issue) : null,
      el("button", { id: `${state}-${issue.id}`, onclick: () => decide(r.id, issue, state) }, WHAT[state])]),
    ...(issue.kind === "task" ? [] : again(r, issue)));
}

// How long a mute is to last. A form: while it has the focus, the page is not drawn again.
/** @param {Issue} issue */
function muteFor(issue) {
  const select = el("select", { id: `for-${issue.id}`, onchange: () => { mutes[issue.id] = select.selectedIndex; } },
    ...MUTES.map(([text], n) => el("option", { selected: n === (mutes[issue.id] ?? 1) }, text)));
  return el("form", {}, el("label", {}, "Mute for", select));
}

/** @param {Issue} issue */
function decided({ decision, state }) {
  if (!decision) return "";
  const until = decision.state !== "muted" ? "" : decision.until ? ` until ${when(decision.until)} UTC` : " until opened again";
  return `${decision.state} by ${decision.by}${until}${state === decision.state ? "" : ", which is over"}`;
}

/** @param {Route} r @param {Issue} issue */
function again(r, issue) {
  return [
    el("button", { id: `would-${issue.id}`, onclick: () => redrive(r, true, { issues: [issue.id] }) }, "What would go?"),
    el("button", { id: `redrive-${issue.id}`, onclick: () => redrive(r, false, { issues: [issue.id] }) }, "Send all again")];
}

// How often it was seen, and where that is told in full: the letters, or the log of the last attempt that failed.
/** @param {Route} r @param {Issue} issue */
function seen(r, issue) {
  if (!issue.log) return [el("a", { href: address([r.id, "dead-letters"], { issue: issue.id }) }, plural(issue.count, "dead letter"))];
  const { dag, run, task, map_index: mapped, try: attempt } = issue.log;
  const part = mapped >= 0 ? `/mapped/${mapped}` : "";
  return [el("span", {}, plural(issue.count, "failed attempt")),
    outward(`/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}/tasks/${encodeURIComponent(task)}${part}?try_number=${attempt}`, "Log of the last one")];
}

/** @param {Route} r @returns {Promise<Child[]>} */
export async function issues(r) {
  /** @type {[Graph, Page<Issue> & { pending: number }, Child]} */
  const [graph, found, under] = await Promise.all([ask(of(r.id, "topology")),
    ask(of(r.id, "issues"), { state: r.query.get("state"), issue: r.query.get("issue"), offset: r.query.get("offset"), limit: PAGE }), sending(r.id)]);
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, "Issues"),
    under,
    el("p", { class: "dim" }, "Dead letters, and failed attempts at tasks, of one node and class whose messages differ in numbers, ids and "
      + "quoted texts only. A resolved one is open again when it is seen again; one of a task is resolved when the task succeeds."),
    r.query.get("issue") ? el("p", {}, "One issue is shown. ", el("a", { href: address([r.id, "issues"]), id: "all-of-it" }, "All of this pipeline")) : null,
    filters(r, [["state", "State", ["open", "acknowledged", "muted", "resolved"]]]),
    reading(found.pending),
    ...found.items.map((issue) => el("article", { class: `issue ${issue.state}`, id: `i-${issue.id}` },
      el("div", { class: "head" }, el("span", { class: `badge ${issue.state === "open" ? "degraded" : "stopped"}` }, issue.state),
        el("strong", {}, `${issue.node}: ${issue.error_class}`), ...seen(r, issue),
        el("span", { class: "dim" }, `first ${at(issue.first)}, last ${at(issue.last)} UTC`), byDay(issue.days)),
      el("p", { class: "error" }, issue.sample.error),
      el("p", { class: "advice" }, issue.advice),
      el("p", { class: "dim" }, "While it was seen: ", ...then(r.id, graph.dag_id, Date.parse(issue.first) / 1000, Date.parse(issue.last) / 1000 + 1, `then-${issue.id}`)),
      el("p", { class: "dim" }, [issue.succeeded ? `succeeded since, ${at(issue.succeeded)} UTC` : "",
        issue.affected ? `${plural(issue.affected, "key")}: ${issue.keys.join(", ")}${issue.affected > issue.keys.length ? " …" : ""}` : "",
        decided(issue)].filter(Boolean).join(" · ")),
      buttons(r, issue))),
    found.items.length ? null : table(["Issues"], [], r.query.get("issue") ? "It is gone: none of its letters is open, or it was not seen for 30 days." : found.pending ? "None so far." : "Nothing fails here."),
    pager(found, r),
  ];
}
