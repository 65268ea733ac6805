// Small charts of bars without axes; screen readers get them as text.
const NS = "http://www.w3.org/2000/svg";

/** @param {number[]} figures @param {string} text */
export function bars(figures, text) {
  const svg = document.createElementNS(NS, "svg"), most = Math.max(...figures, 1), width = figures.length * 4, title = document.createElementNS(NS, "title");
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} 20`, width, height: 20, class: "spark", role: "img", "aria-label": text }))
    svg.setAttribute(name, String(value));
  title.textContent = text;
  svg.append(title);
  figures.forEach((n, at) => {
    if (!n) return;
    const bar = document.createElementNS(NS, "rect"), height = Math.max(1.5, (18 * n) / most);
    for (const [name, value] of Object.entries({ x: at * 4, y: 19 - height, width: 3, height })) bar.setAttribute(name, String(value));
    svg.append(bar);
  });
  return svg;
}

// How many on each of the last days, today the last one. `figures`: day (2026-01-31) → how many.
/** @param {Record<string, number>} figures @param {number} [days] */
export function byDay(figures, days = 14) {
  const of = Array.from({ length: days }, (_, n) => new Date(Date.now() - (days - 1 - n) * 86400000).toISOString().slice(0, 10));
  const said = of.filter((day) => figures[day]).map((day) => `${day}: ${figures[day].toLocaleString("en")}`);
  return bars(of.map((day) => figures[day] ?? 0), `The last ${days} days: ${said.join(", ") || "none"}`);
}
