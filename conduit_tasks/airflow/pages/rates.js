// Records per second of the last ten seconds, by the counts of two looks.
const WINDOW = 10;

// Returns a function from a look to a function from a node (`sources.in`) to its rate; null: one look says nothing.
export function rates() {
  const looks = [];
  return (found) => {
    const done = new Map([
      ...found.sources.map((s) => [`sources.${s.id}`, s.done]),
      ...(found.processors ? [["processors", found.processors.done]] : []),
      ...found.destinations.map((d) => [`destinations.${d.id}`, d.done]),
    ]);
    if (looks.length && found.at < looks.at(-1).at) looks.length = 0; // the server's clock went back
    if (found.at !== looks.at(-1)?.at) looks.push({ at: found.at, done });
    while (looks.length > 2 && found.at - looks[1].at >= WINDOW) looks.shift();
    const first = looks[0], passed = found.at - first.at;
    return (node) => (passed > 0 && first.done.has(node) ? Math.max(0, done.get(node) - first.done.get(node)) / passed : null);
  };
}
