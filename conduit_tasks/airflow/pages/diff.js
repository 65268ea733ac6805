// Two texts side by side, where they differ.
import { el } from "./parts.js";

const CONTEXT = 2, MOST = 1500;
// A line of JSON is the same whether another one follows it.
const same = (/** @type {string | undefined} */ a, /** @type {string | undefined} */ b) => a?.replace(/,$/, "") === b?.replace(/,$/, "");

// Pairs of lines, by their longest common subsequence: [left, right, whether they are equal].
/** @param {string[]} before @param {string[]} after @returns {[string | null, string | null, boolean][]} */
function pairs(before, after) {
  if (before.length > MOST || after.length > MOST) return Array.from({ length: Math.max(before.length, after.length) },
    (_, n) => [before[n] ?? null, after[n] ?? null, same(before[n], after[n])]);
  const longest = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i--)
    for (let j = after.length - 1; j >= 0; j--)
      longest[i][j] = same(before[i], after[j]) ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  /** @type {[string | null, string | null, boolean][]} */
  const out = [];
  let i = 0, j = 0, /** @type {string[]} */ gone = [], /** @type {string[]} */ come = [];
  const flush = () => {
    for (let n = 0; n < Math.max(gone.length, come.length); n++) out.push([gone[n] ?? null, come[n] ?? null, false]);
    gone = [], come = [];
  };
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && same(before[i], after[j])) { flush(); out.push([before[i++], after[j++], true]); }
    else if (j >= after.length || (i < before.length && longest[i + 1][j] >= longest[i][j + 1])) gone.push(before[i++]);
    else come.push(after[j++]);
  }
  flush();
  return out;
}

/** @param {Json[]} records @returns {string[]} */
export const lines = (records) => records.flatMap((record) => JSON.stringify(record, null, 2).split("\n"));

// A table of what differs, with a few equal lines around; null where nothing does.
/** @param {string[]} before @param {string[]} after */
export function sideBySide(before, after, left = "Before", right = "After") {
  const all = pairs(before, after);
  const near = all.map((_, n) => all.slice(Math.max(0, n - CONTEXT), n + CONTEXT + 1).some(([, , equal]) => !equal));
  if (!near.some(Boolean)) return null;
  /** @type {Node[]} */
  const rows = [];
  all.forEach(([was, is, equal], n) => {
    if (!near[n]) { if (n === 0 || near[n - 1]) rows.push(el("tr", { class: "left-out" }, el("td", { colspan: 2 }, "…"))); return; }
    const cell = (/** @type {string | null} */ text, /** @type {string} */ kind) => el("td", { class: equal ? null : text === null ? "none" : kind }, text ?? "");
    rows.push(el("tr", {}, cell(was, "gone"), cell(is, "come")));
  });
  return el("div", { class: "scroll" }, el("table", { class: "diff" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, left), el("th", { scope: "col" }, right))), el("tbody", {}, ...rows)));
}
