// Who holds a node's lease: a link to the log of its task in Airflow, as far as the lease tells it.
import { outward, put } from "./parts.js";

/** @param {HTMLElement} place @param {Shown} p @param {string} node */
export function holder(place, p, node) {
  const held = p.holders[node], name = held?.run_id ?? (held ? "held" : "");
  if (place.dataset.holder === name) return;
  place.dataset.holder = name;
  if (!held?.run_id) { put(place, held ? "lease held" : "lease free"); return; }
  place.replaceChildren(toTask(held, held.run_id));
}

// A link to the log of a task, or to its run where that does not tell the task.
/** @param {NamedTask} task @param {string} text */
export function toTask(task, text) {
  const run = `/dags/${encodeURIComponent(task.dag_id)}/runs/${encodeURIComponent(task.run_id)}`;
  const link = outward(task.task_id ? `${run}/tasks/${encodeURIComponent(task.task_id)}` : run, text);
  link.title = task.task_id ? `The log of ${task.task_id} in run ${task.run_id}` : `Run ${task.run_id} of ${task.dag_id}`;
  link.setAttribute("aria-label", link.title);
  return link;
}
