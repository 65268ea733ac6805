// One pipeline as a drawing: sources, processors, destinations from left to right.

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 250, GAP_X = 80, GAP_Y = 22;

/** @param {string} name @param {Record<string, any>} attributes @param {(Node | string)[]} children */
function svg(name, attributes, ...children) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** @param {string} text */
const fit = (text, length = 34) => (text.length > length ? text.slice(0, length - 1) + "…" : text);

/** @param {Box} item @param {number} x @param {number} y @param {number} height */
function box(item, x, y, height) {
  const group = svg("g", {});
  group.append(svg("title", {}, item.lines.join("\n")));
  group.append(svg("rect", { class: `box ${item.state ?? ""}`, x, y, width: WIDTH, height, rx: 8 }));
  item.lines.forEach((line, n) =>
    group.append(svg("text", { x: x + 14, y: y + 24 + n * 18, class: n ? "small" : "name" }, fit(line, n ? 38 : 28))));
  return group;
}

// `columns`: lists of {lines, state}; every item of a column is joined to every item of the next one.
/** @param {Box[][]} columns @param {string} title */
export function drawing(columns, title) {
  /** @param {Box} item */
  const heightOf = (item) => 18 + item.lines.length * 18;
  const heights = columns.map((items) => items.reduce((sum, item) => sum + heightOf(item) + GAP_Y, -GAP_Y));
  const height = Math.max(...heights) + 4;
  const width = columns.length * (WIDTH + GAP_X) - GAP_X + 4;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": title });
  const places = columns.map((items, column) => {
    let y = 2 + (height - 4 - heights[column]) / 2;
    return items.map((item) => {
      const place = { item, x: 2 + column * (WIDTH + GAP_X), y, height: heightOf(item) };
      y += place.height + GAP_Y;
      return place;
    });
  });
  for (let n = 0; n + 1 < places.length; n++)
    for (const from of places[n])
      for (const to of places[n + 1]) {
        const [x1, y1] = [from.x + WIDTH, from.y + from.height / 2];
        const [x2, y2] = [to.x, to.y + to.height / 2];
        const middle = (x1 + x2) / 2;
        root.append(svg("path", { class: "edge", d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` }));
      }
  for (const { item, x, y, height: own } of places.flat()) root.append(box(item, x, y, own));
  return root;
}
