// Records per second of the last ten seconds, by the counts of two looks.
const WINDOW = 10;

// Returns a function from a look to a function from a node (`sources.in`) to its rate; null: one look says nothing.
/** @returns {(found: Shown) => RateOf} */
export function rates() {
  /** @type {{ at: number, done: Map<string, number> }[]} */
  const looks = [];
  return (found) => {
    /** @type {Map<string, number>} */
    const done = new Map();
    for (const s of found.sources) done.set(`sources.${s.id}`, s.done);
    if (found.processors) done.set("processors", found.processors.done);
    for (const d of found.destinations) done.set(`destinations.${d.id}`, d.done);
    const last = looks.at(-1);
    if (last && found.at < last.at) looks.length = 0; // the server's clock went back
    if (found.at !== looks.at(-1)?.at) looks.push({ at: found.at, done });
    while (looks.length > 2 && found.at - looks[1].at >= WINDOW) looks.shift();
    const first = looks[0], passed = found.at - first.at;
    return (node) => {
      const before = first.done.get(node), now = done.get(node);
      return passed > 0 && before !== undefined && now !== undefined ? Math.max(0, now - before) / passed : null;
    };
  };
}
