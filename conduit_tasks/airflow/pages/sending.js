// What is being sent again, and how much of it is left: the letters that were there when it was asked for, and are open still.
import { ask, of } from "./ask.js";
import { count, el, outward, plural } from "./parts.js";

/** @type {Map<string, Sending>} */
const under = new Map(); // by pipeline: the last one that was asked for here

// Begins to follow a redrive. `query`: its filters, as the list of letters takes them; `sent`: what the API answered to it.
/** @param {string} id @param {Query} query @param {{ at: string, dag_id: string, run_id: string, shares: { letters: number }[] }} sent */
export async function follow(id, query, sent) {
  const letters = sent.shares.reduce((sum, share) => sum + share.letters, 0);
  const until = query.until && Date.parse(String(query.until)) < Date.parse(sent.at) ? query.until : sent.at;
  const before = await ask(of(id, "dead-letters"), { ...query, until, limit: 1 });
  // Of what is chosen, some may not be sendable.
  under.set(id, { query, until: String(until), since: sent.at, letters, stuck: Math.max(0, before.total - letters), dag: sent.dag_id, run: sent.run_id });
}

/** @param {string} id @returns {Promise<Child>} */
export async function sending(id) {
  const here = under.get(id);
  if (!here) return null;
  const { query, until, since, letters, stuck } = here;
  const later = query.until && Date.parse(String(query.until)) < Date.parse(since);
  /** @type {[Page<Letter>, Page<Letter> | null]} */
  const [old, fresh] = await Promise.all([ask(of(id, "dead-letters"), { ...query, until, limit: 1 }),
    later ? null : ask(of(id, "dead-letters"), { ...query, since, limit: 1 })]);
  const left = Math.min(letters, Math.max(0, old.total - stuck)), closed = letters - left;
  const said = `${count(closed)} of ${plural(letters, "dead letter")} closed, ${count(left)} left`
    + (fresh?.total ? `; ${count(fresh.total)} failed since, or again` : "");
  const node = el("div", { class: "head sending", id: "sending" }, el("span", { id: "sent" }, `${left ? "Being sent again" : "Sent again"}: ${said}.`),
    el("progress", { max: letters, value: closed, "aria-label": "Dead letters closed" }),
    outward(`/dags/${encodeURIComponent(here.dag)}/runs/${encodeURIComponent(here.run)}`, "Its run"),
    el("button", { id: "hide-sending", onclick: () => { under.delete(id); node.remove(); } }, "Hide"));
  return node;
}
