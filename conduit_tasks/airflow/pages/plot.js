// One chart over time, drawn by uPlot: hover, zoom by dragging, the keyboard, and the same figures as a table behind it.
import { count, el, table, when } from "./parts.js";
import uPlot from "./uplot.js";

const HEIGHT = 170, ROWS = 120;
const LEAST = 0.06; // of a stack's highest: about six pixels
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];
const sync = uPlot.sync("time");
const color = (/** @type {string} */ name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Steps of an axis of seconds: 10 s and 5 min are round, 1,000 s are not.
export const SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];
// A figure between two steps without any would be no line.
const alone = (/** @type {Figures} */ line) => line.flatMap((n, at) => (n !== null && (line[at - 1] ?? null) === null && (line[at + 1] ?? null) === null ? [at] : []));

// Figures of stacked lines, of which a few beside many are as high as can be seen; the highest of that moment gives it to them.
/** @param {Figures[]} lines @returns {number[][]} */
function visible(lines) {
  const shown = lines.map((line) => line.map((n) => n ?? 0)), sum = (/** @type {number} */ at) => shown.reduce((all, line) => all + line[at], 0);
  const totals = (shown[0] ?? []).map((_, at) => sum(at)), most = Math.max(0, ...totals);
  totals.forEach((total, at) => {
    const least = Math.min(most * LEAST, total / (2 * lines.length)), highest = shown.reduce((a, b) => (b[at] > a[at] ? b : a));
    for (const line of shown) if (line !== highest && line[at] > 0 && line[at] < least) {
      highest[at] -= least - line[at];
      line[at] = least;
    }
  });
  return shown;
}

// The times at which a chart begins and ends.
/** @param {uPlot} u @returns {[number, number]} */
const ends = (u) => [u.scales.x.min ?? 0, u.scales.x.max ?? 0];

// The hours of an axis, by the clock of 24 hours, with the day where one begins.
/** @param {uPlot} u @param {number[]} ticks @param {number} axis @param {number} space @param {number} step */
function hours(u, ticks, axis, space, step) {
  let day = "";
  return ticks.map((at) => {
    const text = when(at), fresh = text.slice(5, 10) !== day;
    day = text.slice(5, 10);
    return step >= 86400 ? day : text.slice(11, 16) + (fresh ? `\n${day}` : "");
  });
}

// `zoom`: is told of another interval, and sets it; `pick`: is told of a moment that was chosen, if one can be.
// `lines`: [{ label, color, dash, step }]; `format`: of a figure, for people; `stacked`: each line stands on the one before it.
/** @param {Plotted} about */
export function plot({ id, title, lines, format = count, steps, stacked = false, zoom, pick }) {
  let /** @type {[number[], ...Figures[]]} */ data = [[], ...lines.map(() => [])], /** @type {uPlot | null} */ chart = null, quiet = false;
  const holder = el("div", { class: "plot", tabindex: 0, role: "group", id: `c-${id}`, onkeydown: key,
    "aria-label": `${title}. Left and right: look at a moment; plus and minus: zoom; 0: all${pick ? "; Enter: what ran then" : ""}.` });
  const spoken = el("span", { class: "spoken", "aria-live": "polite" });
  const behind = el("div");
  const details = el("details", { id: `t-${id}`, ontoggle: () => tabulate() }, el("summary", {}, "As a table"), behind);
  const node = el("figure", { class: "chart" }, el("figcaption", {}, title), holder, spoken, details);

  /** @param {number} width @returns {uPlot.Options} */
  function options(width) {
    const hue = (/** @type {Line} */ line) => color(`--s${line.color % 8}`);
    return {
      width, height: HEIGHT, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
      cursor: { sync: { key: sync.key }, drag: { x: true, y: false } },
      legend: { markers: { dash: (u, s) => (lines[s - 1]?.dash ? "dotted" : "solid") } }, // a dashed line is told from a whole one
      scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [
        { stroke: () => color("--dim"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { stroke: () => color("--line") },
          font: "12px system-ui, sans-serif", values: hours },
        { stroke: () => color("--dim"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false }, size: 62,
          font: "12px system-ui, sans-serif", incrs: steps, values: (u, ticks) => ticks.map(format) },
      ],
      series: [
        { label: "UTC", value: (u, at) => (at === null ? "–" : when(at).slice(5)) },
        ...lines.map((line, n) => ({
          label: line.label, stroke: hue(line), width: stacked ? 0 : 1.5, dash: DASHES[line.dash ?? 0],
          points: { show: !stacked, size: 4, filter: (/** @type {uPlot} */ u, /** @type {number} */ at) => alone(data[at]) },
          paths: line.step ? uPlot.paths.stepped?.({ align: 1 }) : undefined, fill: stacked ? hue(line) : undefined,
          value: (/** @type {uPlot} */ u, /** @type {number} */ shown, /** @type {number} */ s, /** @type {number | null} */ idx) => figure(n, idx) ?? "–",
        })),
      ],
      bands: stacked ? lines.slice(1).map((_, n) => ({ series: [n + 2, n + 1] })) : [],
      hooks: {
        setScale: [(u, name) => { if (name === "x" && !quiet) zoom(whole(u) ? null : ends(u)); }],
        ready: [(u) => u.over.addEventListener("click", () => { if (typeof u.cursor.idx === "number" && !u.select.width) pick?.(data[0][u.cursor.idx]); })],
      },
    };
  }

  const whole = (/** @type {uPlot} */ u) => ends(u)[0] <= data[0][0] && ends(u)[1] >= data[0][data[0].length - 1];

  // A figure of a line for people; null where there is none.
  /** @param {number} line @param {number | null | undefined} idx */
  function figure(line, idx) {
    const n = typeof idx === "number" ? data[line + 1][idx] : null;
    return n === null || n === undefined ? null : format(n);
  }

  // Stacked lines are drawn as sums of those before them; what is told of them stays their own.
  /** @returns {[number[], ...Figures[]]} */
  function drawn() {
    if (!stacked) return data;
    const sums = data[0].map(() => 0), shown = visible(data.slice(1));
    return [data[0], ...shown.map((line) => line.map((n, at) => (sums[at] += n)))];
  }

  function make() {
    chart?.destroy();
    chart = holder.clientWidth ? new uPlot(options(holder.clientWidth), drawn(), holder) : null;
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (!chart || !data[0].length) return;
    const last = data[0].length - 1, here = chart.cursor.idx ?? last;
    const go = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 })[event.key];
    if (go !== undefined) look(Math.min(last, Math.max(0, here + go)));
    else if (event.key === "Home" || event.key === "End") look(event.key === "Home" ? 0 : last);
    else if (event.key === "+" || event.key === "-") zoom(around(chart, data[0][here], event.key === "+" ? 0.5 : 2));
    else if (event.key === "0" || event.key === "Escape") zoom(null);
    else if (event.key === "Enter" && pick) pick(data[0][here]);
    else return;
    event.preventDefault();
  }

  /** @param {number} idx */
  function look(idx) {
    chart?.setCursor({ left: chart.valToPos(data[0][idx], "x"), top: HEIGHT / 3 });
    spoken.textContent = `${when(data[0][idx])}: ${lines.map((line, n) => `${line.label} ${figure(n, idx) ?? "nothing"}`).join(", ")}`;
  }

  /** @param {uPlot} u @param {number} at @param {number} factor @returns {Interval} */
  function around(u, at, factor) {
    const [from, to] = ends(u), half = ((to - from) / 2) * factor;
    return [Math.max(data[0][0], at - half), Math.min(data[0][data[0].length - 1], at + half)];
  }

  function tabulate() {
    if (!details.open) return;
    const [low, high] = chart ? ends(chart) : [0, Infinity];
    /** @type {string[][]} */
    const rows = [];
    for (let n = data[0].length - 1; n >= 0 && rows.length < ROWS; n--) {
      if (data[0][n] < low || data[0][n] > high || !lines.some((_, line) => data[line + 1][n])) continue;
      rows.push([when(data[0][n]), ...lines.map((_, line) => figure(line, n) ?? "–")]);
    }
    behind.replaceChildren(table(["From (UTC)", ...lines.map((line) => `#${line.label}`)], rows, "Nothing happened in this time."));
  }

  // New figures; `interval`: what is zoomed to, null: all of it.
  /** @param {[number[], ...Figures[]]} found @param {Interval} interval */
  function set(found, interval) {
    data = found;
    if (!chart) make();
    const here = chart;
    if (!here) return;
    quiet = true;
    here.batch(() => {
      here.setData(drawn(), interval === null);
      if (interval) here.setScale("x", { min: interval[0], max: interval[1] });
    });
    // uPlot tells of a new scale behind this task.
    queueMicrotask(() => { quiet = false; });
    tabulate();
  }

  new ResizeObserver(() => {
    if (!chart) make();
    else if (holder.clientWidth && holder.clientWidth !== chart.width) chart.setSize({ width: holder.clientWidth, height: HEIGHT });
  }).observe(holder);
  document.addEventListener("conduit:theme", () => { if (chart) make(); });
  return { node, set };
}
