// What was under way between two moments: Airflow's runs that had begun and not ended, and the micro-batches up to then.
import { address } from "./address.js";
import { el, outward } from "./parts.js";

// `from`, `to`: seconds since the epoch; `name`: begins the ids of the links.
/** @param {string} id @param {string} dag @param {number} from @param {number} to @param {string} name @returns {Child[]} */
export function then(id, dag, from, to, name) {
  const iso = (/** @type {number} */ n) => new Date(n * 1000).toISOString();
  const query = new URLSearchParams({ start_date_lte: iso(to), end_date_gte: iso(from) });
  const runs = outward(`/dags/${encodeURIComponent(dag)}/runs?${query}`, "runs then");
  runs.id = `${name}-runs`;
  return [el("a", { id: `${name}-batches`, href: address([id, "micro-batches"], { until: iso(to) }) }, "micro-batches up to then"), " · ", runs];
}
