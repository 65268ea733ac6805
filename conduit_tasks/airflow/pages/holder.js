// Who holds a node's lease: a link to the log of its task in Airflow, as far as the lease tells it.
import { outward, put } from "./parts.js";

/** @param {HTMLElement} place @param {Shown} p @param {string} node */
export function holder(place, p, node) {
  const held = p.holders[node], name = held?.run_id ?? (held ? "held" : "");
  if (place.dataset.holder === name) return;
  place.dataset.holder = name;
  if (!held?.run_id) { put(place, held ? "lease held" : "lease free"); return; }
  const run = `/dags/${encodeURIComponent(held.dag_id)}/runs/${encodeURIComponent(held.run_id)}`;
  const link = outward(held.task_id ? `${run}/tasks/${encodeURIComponent(held.task_id)}` : run, held.run_id);
  link.title = held.task_id ? `The log of ${held.task_id} in run ${held.run_id}` : `Run ${held.run_id} of ${held.dag_id}`;
  link.setAttribute("aria-label", link.title);
  place.replaceChildren(link);
}
