// One chart over time, drawn by uPlot: hover, zoom by dragging, the keyboard, and the same figures as a table behind it.
import { count, el, table, when } from "./parts.js";
import uPlot from "./uplot.js";

const HEIGHT = 170, ROWS = 120;
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];
const sync = uPlot.sync("time");
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Steps of an axis of seconds: 10 s and 5 min are round, 1,000 s are not.
export const SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];
// A figure between two steps without any would be no line.
const alone = (line) => line.flatMap((n, at) => (n !== null && (line[at - 1] ?? null) === null && (line[at + 1] ?? null) === null ? [at] : []));

// The hours of an axis, by the clock of 24 hours, with the day where one begins.
function hours(u, ticks, axis, space, step) {
  let day = "";
  return ticks.map((at) => {
    const text = when(at), fresh = text.slice(5, 10) !== day;
    day = text.slice(5, 10);
    return step >= 86400 ? day : text.slice(11, 16) + (fresh ? `\n${day}` : "");
  });
}

// `lines`: [{ label, color, dash, step }]; `format`: of a figure, for people; `stacked`: each line stands on the one before it.
export function plot({ id, title, lines, format = count, steps, stacked = false, zoom = () => {}, pick = () => {} }) {
  let data = [[], ...lines.map(() => [])], chart = null, quiet = false;
  const holder = el("div", { class: "plot", tabindex: 0, role: "group", id: `c-${id}`, onkeydown: key,
    "aria-label": `${title}. Left and right: look at a moment; plus and minus: zoom; 0: all; Enter: what ran then.` });
  const spoken = el("span", { class: "spoken", "aria-live": "polite" });
  const behind = el("div");
  const details = el("details", { id: `t-${id}`, ontoggle: () => tabulate() }, el("summary", {}, "As a table"), behind);
  const node = el("figure", { class: "chart" }, el("figcaption", {}, title), holder, spoken, details);

  function options(width) {
    const hue = (line) => color(`--s${line.color % 8}`);
    return {
      width, height: HEIGHT, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
      cursor: { sync: { key: sync.key }, drag: { x: true, y: false } },
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
          points: { show: !stacked, size: 4, filter: (u, at) => alone(data[at]) },
          paths: line.step ? uPlot.paths.stepped({ align: 1 }) : undefined, fill: stacked ? hue(line) : undefined,
          value: (u, shown, s, idx) => (idx === null || idx === undefined || data[n + 1][idx] === null ? "–" : format(data[n + 1][idx])),
        })),
      ],
      bands: stacked ? lines.slice(1).map((_, n) => ({ series: [n + 2, n + 1] })) : [],
      hooks: {
        setScale: [(u, name) => { if (name === "x" && !quiet) zoom(whole(u) ? null : [u.scales.x.min, u.scales.x.max]); }],
        ready: [(u) => u.over.addEventListener("click", () => { if (u.cursor.idx !== null && !u.select.width) pick(data[0][u.cursor.idx]); })],
      },
    };
  }

  const whole = (u) => u.scales.x.min <= data[0][0] && u.scales.x.max >= data[0].at(-1);

  // Stacked lines are drawn as sums of those before them; what is told of them stays their own.
  function drawn() {
    if (!stacked) return data;
    const sums = data[0].map(() => 0);
    return [data[0], ...data.slice(1).map((line) => line.map((n, at) => (sums[at] += n ?? 0)))];
  }

  function make() {
    chart?.destroy();
    chart = holder.clientWidth ? new uPlot(options(holder.clientWidth), drawn(), holder) : null;
  }

  function key(event) {
    if (!chart || !data[0].length) return;
    const last = data[0].length - 1, here = chart.cursor.idx ?? last;
    const go = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (go !== undefined) look(Math.min(last, Math.max(0, here + go)));
    else if (event.key === "Home" || event.key === "End") look(event.key === "Home" ? 0 : last);
    else if (event.key === "+" || event.key === "-") zoom(around(data[0][here], event.key === "+" ? 0.5 : 2));
    else if (event.key === "0" || event.key === "Escape") zoom(null);
    else if (event.key === "Enter") pick(data[0][here]);
    else return;
    event.preventDefault();
  }

  function look(idx) {
    chart.setCursor({ left: chart.valToPos(data[0][idx], "x"), top: HEIGHT / 3 });
    spoken.textContent = `${when(data[0][idx])}: ${lines.map((line, n) => `${line.label} ${data[n + 1][idx] === null ? "nothing" : format(data[n + 1][idx])}`).join(", ")}`;
  }

  function around(at, factor) {
    const half = ((chart.scales.x.max - chart.scales.x.min) / 2) * factor;
    return [Math.max(data[0][0], at - half), Math.min(data[0].at(-1), at + half)];
  }

  function tabulate() {
    if (!details.open) return;
    const [low, high] = chart ? [chart.scales.x.min, chart.scales.x.max] : [0, Infinity];
    const rows = [];
    for (let n = data[0].length - 1; n >= 0 && rows.length < ROWS; n--) {
      const figures = lines.map((_, line) => data[line + 1][n]);
      if (data[0][n] < low || data[0][n] > high || !figures.some(Boolean)) continue;
      rows.push([when(data[0][n]), ...figures.map((figure) => (figure === null ? "–" : format(figure)))]);
    }
    behind.replaceChildren(table(["From (UTC)", ...lines.map((line) => `#${line.label}`)], rows, "Nothing happened in this time."));
  }

  // New figures; `interval`: what is zoomed to, null: all of it.
  function set(found, interval) {
    data = found;
    if (!chart) make();
    if (!chart) return;
    quiet = true;
    chart.batch(() => {
      chart.setData(drawn(), interval === null);
      if (interval) chart.setScale("x", { min: interval[0], max: interval[1] });
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
