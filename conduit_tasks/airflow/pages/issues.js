// Failures of one cause, what somebody decided about each, and all of one sent again.
import { address, filters, PAGE, pager } from "./address.js";
import { ask, of } from "./ask.js";
import { head, said } from "./head.js";
import { redrive } from "./letters.js";
import { at, count, el, plural, table } from "./parts.js";

const WHAT = { acknowledged: "Acknowledge", muted: "Mute a day", resolved: "Resolve", open: "Open again" };

async function decide(id, issue, state) {
  const until = state === "muted" ? new Date(Date.now() + 86400000).toISOString() : null;
  try {
    await ask(of(id, "issues", issue.id), {}, { state, until });
    said.textContent = `${issue.id}: ${state}`;
  } catch (error) {
    said.textContent = `It was refused: ${error.message}`;
  }
  document.dispatchEvent(new Event("conduit:again"));
}

function buttons(r, issue) {
  const next = issue.state === "open" ? ["acknowledged", "muted", "resolved"] : ["open"];
  return el("div", { class: "head" },
    ...next.map((state) => el("button", { id: `${state}-${issue.id}`, onclick: () => decide(r.id, issue, state) }, WHAT[state])),
    el("button", { id: `would-${issue.id}`, onclick: () => redrive(r, true, { issues: [issue.id] }) }, "What would go?"),
    el("button", { id: `redrive-${issue.id}`, onclick: () => redrive(r, false, { issues: [issue.id] }) }, "Send all again"));
}

export async function issues(r) {
  const [graph, found] = await Promise.all([ask(of(r.id, "topology")),
    ask(of(r.id, "issues"), { state: r.query.get("state"), offset: r.query.get("offset"), limit: PAGE })]);
  const letters = (issue) => address([r.id, "dead-letters"], { issue: issue.id });
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, "Issues"),
    el("p", { class: "dim" }, "Dead letters of one node and class whose messages differ in numbers, ids and quoted texts only. "
      + "A resolved one is open again when it is seen again."),
    filters(r, [["state", "State", ["open", "acknowledged", "muted", "resolved"]]]),
    ...found.items.map((issue) => el("article", { class: `issue ${issue.state}`, id: `i-${issue.id}` },
      el("div", { class: "head" }, el("span", { class: `badge ${issue.state === "open" ? "degraded" : "stopped"}` }, issue.state),
        el("strong", {}, `${issue.node}: ${issue.error_class}`), el("a", { href: letters(issue) }, plural(issue.count, "dead letter")),
        el("span", { class: "dim" }, `first ${at(issue.first)}, last ${at(issue.last)} UTC`)),
      el("p", { class: "error" }, issue.sample.error),
      el("p", { class: "dim" }, [issue.affected ? `${plural(issue.affected, "key")}: ${issue.keys.join(", ")}${issue.affected > issue.keys.length ? " …" : ""}` : "no keys",
        Object.entries(issue.days).map(([day, n]) => `${day}: ${count(n)}`).slice(-7).join(", "),
        issue.decision ? `${issue.decision.state} by ${issue.decision.by}` : ""].filter(Boolean).join(" · ")),
      buttons(r, issue))),
    found.items.length ? null : table(["Issues"], [], "Nothing is dead here."),
    pager(found, r),
  ];
}
