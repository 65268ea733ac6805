// Answers that had no time for all: the page shows what is known, and asks at once for more until nothing is left.
import { el, plural } from "./parts.js";

const SOON = 100;
let left = 0; // what was to be read at the last answer

// After an answer that brought nothing further the page asks when it would anyway.
/** @param {number} pending */
export function goOn(pending) {
  if (pending && pending !== left) setTimeout(() => document.hidden || document.dispatchEvent(new Event("conduit:again")), SOON);
  left = pending;
}

// Files of one pipeline's dead letters that are still to be read, as after an update.
/** @param {number} files */
export function reading(files) {
  goOn(files);
  return files ? el("p", { class: "missing" }, `${plural(files, "more file")} of dead letters ${files === 1 ? "is" : "are"} being read: what is in them is not shown yet, nor counted.`) : null;
}
