// The pages: what is shown stands in the address behind "#". Text is only ever set as text, never as markup.
import { drawing } from "./drawing.js";
import { replays } from "./replays.js";

const ROOT = location.pathname.replace(/\/conduit\/pages\/.*$/, "");
const API = `${ROOT}/conduit/v1/pipelines`;
const POLL = 3000, PAGE = 50;
const page = document.getElementById("page");
const problem = document.getElementById("problem");
const said = document.getElementById("said");
const number = new Intl.NumberFormat("en");

// ---- small parts

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false && value !== null) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const count = (n) => (n === null || n === undefined ? "–" : number.format(n));
const badge = (status) => el("span", { class: `badge ${status}` }, status);
const when = (seconds) => (seconds ? new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) : "–");
const at = (text) => text.replace("T", " ").slice(0, 19);

function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024 || unit === "GiB") return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
}

function age(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function table(heads, rows, empty) {
  const head = heads.map((h) => el("th", { scope: "col", class: h.startsWith("#") ? "number" : null }, h.replace("#", "")));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, n) => {
      const error = cell?.error !== undefined;
      return el("td", { class: error ? "error" : heads[n].startsWith("#") ? "number" : null }, error ? cell.error : cell ?? "–");
    })));
  if (!body.length) body.push(el("tr", {}, el("td", { colspan: heads.length, class: "dim" }, empty)));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
}

// ---- the address

const framedFor = new URLSearchParams(location.search).get("dag");

function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [id, view = "", ...rest] = path.split("/").map(decodeURIComponent);
  return { id, view, rest, query: new URLSearchParams(query) };
}

function address(parts, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== 0);
  return `#/${parts.map(encodeURIComponent).join("/")}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

// Airflow's frames may not navigate the top; its own router follows the history.
function outward(path, text) {
  return el("a", { href: ROOT + path, target: "_top", onclick: (event) => {
    if (window.parent === window || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    parent.history.pushState(null, "", ROOT + path);
    parent.dispatchEvent(new PopStateEvent("popstate"));
  } }, text);
}

// ---- asking the server

async function ask(path, query = {}, body = undefined) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const answer = await fetch(`${API}${path}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`, {
    method: body ? "POST" : "GET",
    headers: body ? { "Content-Type": "application/json", "X-Conduit-Request": "1" } : {},
    body: body && JSON.stringify(body),
  });
  const found = await answer.json().catch(() => ({ detail: `the server answered ${answer.status}; look at its log` }));
  if (!answer.ok) throw new Error(answer.status === 401 ? "You are not signed in any more: reload Airflow." : found.detail);
  return found;
}

const of = (id, ...more) => "/" + [id, ...more].map(encodeURIComponent).join("/");

function pager(found, r) {
  const to = (offset) => () => { location.hash = address([r.id, r.view].filter(Boolean), { ...Object.fromEntries(r.query), offset }); };
  const last = Math.min(found.offset + found.items.length, found.total);
  return el("p", {},
    el("button", { id: "newer", onclick: to(Math.max(0, found.offset - PAGE)), disabled: found.offset === 0 }, "← Previous"), " ",
    el("button", { id: "older", onclick: to(found.offset + PAGE), disabled: last >= found.total }, "Next →"), " ",
    el("span", { class: "dim" }, found.total ? `${count(found.offset + 1)}–${count(last)} of ${count(found.total)}` : "none"));
}

// Fields of a filter; the server does the filtering.
function filters(r, fields) {
  const form = el("form", { class: "head", onsubmit: (event) => {
    event.preventDefault();
    location.hash = address([r.id, r.view].filter(Boolean), Object.fromEntries(new FormData(form)));
  } });
  for (const [name, text, options] of fields) {
    const value = r.query.get(name) ?? "";
    const field = Array.isArray(options)
      ? el("select", { name, id: `f-${name}` }, ...["", ...options].map((o) => el("option", { value: o, selected: o === value }, o || "any")))
      : el("input", { name, id: `f-${name}`, type: options ?? "search", value });
    form.append(el("label", {}, text, field));
  }
  form.append(el("button", { id: "f-go" }, "Filter"));
  return form;
}

// ---- views: each returns nodes

async function list(r) {
  const found = await ask("", { q: r.query.get("q"), status: r.query.get("status"), offset: r.query.get("offset"), limit: PAGE });
  return [
    el("div", { class: "head" }, el("h1", {}, "Pipelines")),
    filters(r, [["q", "Id"], ["status", "Status", ["running", "recovering", "degraded", "stopping", "stopped"]]]),
    table(["Pipeline", "Status", "#Sealed", "#Behind", "#Dead", "First error"],
      found.items.map((p) => [
        el("a", { href: address([p.id]), id: `p-${p.id}` }, p.id), badge(p.status), count(p.sealed), count(p.behind), count(p.dead),
        { error: p.error ? `${p.error.node}: ${p.error.error}` : "" },
      ]), "No pipeline here, or none that you may see. A file with errors shows in `conduit validate`."),
    pager(found, r),
  ];
}

function head(r, dag, status) {
  const views = [["", "Overview"], ["micro-batches", "Micro-batches"], ["dead-letters", "Dead letters"], ["replay", "Replay"], ["record", "A record"]];
  return [
    el("div", { class: "head" }, el("h1", {}, r.id), status ? badge(status) : null, el("span", { class: "grow" }),
      outward(`/dags/${encodeURIComponent(dag)}`, "Its DAG")),
    el("nav", { "aria-label": "Views" }, framedFor ? null : el("a", { href: "#/" }, "← Pipelines"),
      ...views.map(([view, text]) => el("a", { href: address([r.id, view].filter(Boolean)), id: `v-${view}`,
        "aria-current": view === r.view ? "page" : null }, text))),
  ];
}

async function change(id, what, body) {
  try {
    const done = await ask(of(id, what), {}, body);
    said.textContent = [`${id}: ${done.status}`, done.left && `in flight: ${done.left}`, done.note].filter(Boolean).join("; ");
  } catch (error) {
    said.textContent = `${what} was refused: ${error.message}`;
  }
  show();
}

function controls(p) {
  const active = ["running", "recovering"].includes(p.status);
  return el("div", { class: "head" },
    el("button", { id: "start", disabled: active, onclick: () => change(p.pipeline, "start", {}) }, "Start"),
    el("button", { id: "stop", disabled: !active, onclick: () => change(p.pipeline, "stop", { force: false }) }, "Stop"),
    el("button", { id: "force", class: "danger", disabled: p.status === "stopped", onclick: () => {
      if (confirm(`Stop ${p.pipeline} at once? What is not sealed is dropped and read again after the next start.`))
        change(p.pipeline, "stop", { force: true });
    } }, "Stop at once"));
}

// Records per second at each destination, between the last two looks at it.
const looks = {};
function rates(p) {
  const now = { at: p.at, delivered: Object.fromEntries(p.destinations.map((d) => [d.id, d.delivered ?? 0])) };
  const [before, last] = looks[p.pipeline] ?? [now, now];
  looks[p.pipeline] = now.at - last.at >= 1 ? [last, now] : [before, last];
  const [from, to] = looks[p.pipeline];
  return (id) => (to.at > from.at ? Math.max(0, (to.delivered[id] - (from.delivered[id] ?? 0)) / (to.at - from.at)) : null);
}

// Of an isolated pipeline each destination can be stopped alone.
function destinationControl(p, d) {
  if (!p.isolate) return [];
  const stopped = d.status === "stopped";
  return [el("button", { id: `${stopped ? "start" : "stop"}-${d.id}`, "aria-label": `${stopped ? "Start" : "Stop"} ${d.id}`,
    onclick: () => change(p.pipeline, stopped ? "start" : "stop", { destination: d.id }) }, stopped ? "Start" : "Stop")];
}

async function overview(r) {
  const [p, graph] = await Promise.all([ask(of(r.id)), ask(of(r.id, "topology"))]);
  const rate = rates(p);
  const read = Object.fromEntries(p.sources.map((s) => [s.id, s.read]));
  const columns = [graph.sources.map((s) => ({ lines: [s.id, s.plugin, ...s.processors.map((x) => `· ${x.plugin}`), `${count(read[s.id])} read`] }))];
  if (graph.processors.length) columns.push([{ lines: ["processors", ...graph.processors.map((x) => `· ${x.id}: ${x.plugin}`)] }]);
  const about = Object.fromEntries(p.destinations.map((d) => [d.id, d]));
  columns.push(graph.destinations.map((d) => {
    const s = about[d.id];
    return {
      state: s.status !== "running" || s.error ? "failed" : s.lag.records ? "late" : "",
      lines: [d.id, `${d.plugin} · ${d.pipe}${d.filters ? " · filtered" : ""}`, ...d.processors.map((x) => `· ${x.plugin}`),
        `cursor ${count(s.cursor)} · ${count(s.delivered)} delivered`,
        s.lag.records ? `behind ${count(s.lag.records)} · ${bytes(s.lag.bytes)} · ${age(s.lag.age)}` : "up to date",
        ...(s.dead ? [plural(s.dead, "dead letter")] : [])],
    };
  }));
  return [
    ...head(r, p.dag_id, p.status),
    p.description ? el("p", { class: "dim" }, p.description) : null,
    p.lost ? el("p", { class: "first-error" }, p.lost) : null,
    p.error ? el("p", { class: "first-error" }, `First error, ${p.error.node}, ${when(p.error.at)}: ${p.error.error}`) : null,
    ...p.destinations.filter((d) => d.breaker && d.breaker.opened).map((d) => el("p", { class: "first-error" },
      `${d.id} waits: its breaker is open since ${when(d.breaker.since)} (${plural(d.breaker.failures, "failure")} in a row, ` +
      `the last: ${d.breaker.error}); one record is tried ${d.breaker.left ? `at ${when(d.breaker.until)}` : "now"}`)),
    controls(p),
    drawing(columns, `Topology of ${r.id}`),
    el("h2", {}, "Destinations"),
    table(["Destination", "Status", "#Cursor", "#Behind", "#Bytes", "#Age", "#Delivered", "#Per second", "#Retried", "#Dead",
      "#Parked", "Lease", "Task", ...(p.isolate ? ["Alone"] : [])],
      p.destinations.map((d) => [d.id, badge(d.status), count(d.cursor), count(d.lag.records), bytes(d.lag.bytes), age(d.lag.age),
        count(d.delivered), rate(d.id) === null ? "–" : count(Math.round(rate(d.id))), count(d.retried),
        d.dead ? el("a", { href: address([r.id, "dead-letters"], { destination: d.id }) }, count(d.dead)) : "0",
        count(d.parked_keys), d.lease_for ? `held, ${age(d.lease_for)}` : "free",
        outward(`/dags/${encodeURIComponent(p.dag_id)}/tasks/${encodeURIComponent(d.task_id)}`, "task"),
        ...destinationControl(p, d)])),
    el("h2", {}, "Sources"),
    table(["Source", "#Read", "#Filtered", "#Nacked", "Acked", "Task"],
      p.sources.map((s) => [s.id, count(s.read), count(s.filtered), count(s.nacked),
        Object.entries(s.acked).map(([part, position]) => `${part}: ${JSON.stringify(position)}`).join(", ") || "–",
        outward(`/dags/${encodeURIComponent(p.dag_id)}/tasks/${encodeURIComponent(s.task_id)}`, "task")])),
  ];
}

async function microBatches(r) {
  const [graph, found] = await Promise.all([
    ask(of(r.id, "topology")), ask(of(r.id, "micro-batches"), { offset: r.query.get("offset"), limit: PAGE })]);
  const ids = graph.destinations.map((d) => d.id);
  const share = (m, id) => {
    const d = m.destinations[id];
    if (d.delivered) return "✓ delivered";
    return m.state === "sealed" ? `${count(d.confirmed)} of ${count(m.records)}` : "–";
  };
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, "Micro-batches"),
    table(["#Number", "State", "#Records", "#Bytes", "Sealed (UTC)", ...ids],
      found.items.map((m) => [count(m.number), m.missing?.length ? `${m.state}, waits for ${m.missing.join(", ")}` : m.state,
        count(m.records), m.bytes === undefined ? "–" : bytes(m.bytes), when(m.sealed_at), ...ids.map((id) => share(m, id))]),
      "None was opened yet."),
    pager(found, r),
  ];
}

const plural = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

// What the filters choose goes again; a run of Airflow sends it.
async function redrive(r, dry) {
  const chosen = (name) => r.query.get(name) || null;
  const body = { dry_run: dry, destination: chosen("destination"), since: chosen("since"), until: chosen("until"),
    classes: chosen("error_class") ? [chosen("error_class")] : [], keys: chosen("key") ? [chosen("key")] : [] };
  const told = (found) => found.shares.map((s) =>
    `${s.destination}: ${plural(s.letters, "dead letter")}${s.parked ? ` and ${plural(s.parked, "parked record")}` : ""}`).join("; ") || "nothing";
  try {
    const look = await ask(of(r.id, "dead-letters", "redrive"), {}, { ...body, dry_run: true });
    const cannot = look.cannot.map((sentence) => ` ${sentence}.`).join("");
    if (dry || !look.shares.length) { said.textContent = `Would be sent again: ${told(look)}.${cannot}`; return; }
    if (!confirm(`Send again ${told(look)}?${cannot}`)) return;
    const done = await ask(of(r.id, "dead-letters", "redrive"), {}, body);
    said.replaceChildren(`Being sent again: ${told(done)}. `,
      outward(`/dags/${encodeURIComponent(done.dag_id)}/runs/${encodeURIComponent(done.run_id)}`, "Its run"));
  } catch (error) {
    said.textContent = `It was refused: ${error.message}`;
  }
}

async function deadLetters(r) {
  const names = ["destination", "error_class", "since", "until", "key"];
  const query = Object.fromEntries(names.map((name) => [name, r.query.get(name)]));
  const [graph, found] = await Promise.all([
    ask(of(r.id, "topology")), ask(of(r.id, "dead-letters"), { ...query, offset: r.query.get("offset"), limit: PAGE })]);
  const classes = Object.entries(found.classes).map(([name, n]) => `${count(n)} × ${name}`).join(", ");
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, "Dead letters"),
    filters(r, [["destination", "Destination", [...graph.destinations.map((d) => d.id), "_pipeline"]], ["error_class", "Class"],
      ["since", "From (UTC)", "date"], ["until", "Before", "date"], ["key", "Key"]]),
    el("p", { class: "dim" }, classes || "Nothing is dead here."),
    el("div", { class: "head" },
      el("button", { id: "would", disabled: !found.total, onclick: () => redrive(r, true) }, "What would be sent again?"),
      el("button", { id: "redrive", disabled: !found.total, onclick: () => redrive(r, false) }, "Send these again")),
    table(["Destination", "#Micro-batch", "#Record", "At (UTC)", "#Attempts", "Class", "Error", "Key"],
      found.items.map((d) => [d.destination, count(d.micro_batch),
        el("a", { href: address([r.id, "dead-letter", d.destination, d.epoch, d.micro_batch, d.seq, d.ord]) }, d.ord ? `${d.seq}.${d.ord}` : `${d.seq}`),
        at(d.at), count(d.attempts), d.error_class, { error: d.error }, d.key]), "None with this filter."),
    pager(found, r),
  ];
}

async function deadLetter(r) {
  const [graph, d] = await Promise.all([ask(of(r.id, "topology")), ask(of(r.id, "dead-letters", ...r.rest))]);
  return [
    ...head(r, graph.dag_id),
    el("h2", {}, `Dead letter of ${d.destination}, micro-batch ${count(d.micro_batch)}, record ${d.seq}`),
    el("p", { class: "first-error" }, `${d.error_class}, ${plural(d.attempts, "attempt")}, ${at(d.at)}, at ${d.node}: ${d.error}`),
    el("p", {}, el("a", { href: address([r.id, "record", d.id]) }, "Its delivery history"), ` · ${d.connector}, partition ${d.partition}`),
    el("pre", { tabindex: 0, "aria-label": "The record" }, JSON.stringify(d.record, null, 2)),
  ];
}

async function record(r) {
  const graph = await ask(of(r.id, "topology"));
  const id = r.rest[0];
  const form = el("form", { class: "head", onsubmit: (event) => {
    event.preventDefault();
    location.hash = address([r.id, "record", new FormData(form).get("id").trim()]);
  } }, el("label", {}, "Record id", el("input", { name: "id", id: "f-id", size: 44, required: true, value: id ?? "" })), el("button", { id: "f-go" }, "Show"));
  const out = [...head(r, graph.dag_id), el("h2", {}, "A record's delivery history"), form];
  if (!id) return out;
  const found = await ask(of(r.id, "records", id, "history"));
  return [...out,
    ...found.places.map((p) => el("p", { class: "dim" }, `Micro-batch ${count(p.micro_batch)}, number ${p.seq}, from ${p.source} ${p.partition}: ${p.state} as a whole`)),
    table(["Ended (UTC)", "Destination", "Outcome", "Status", "#Seconds", "Class", "Error", "Run"],
      found.attempts.map((a) => [at(a.ended), a.destination, a.outcome, a.status, a.seconds?.toFixed(2), a.error_class, { error: a.error ?? "" }, a.run]),
      found.left ? `Looking: ${plural(found.left, "micro-batch")} of the spool to go through.` : "No attempt was made at it.")];
}

const VIEWS = { "": overview, "micro-batches": microBatches, "dead-letters": deadLetters, "dead-letter": deadLetter, record,
  replay: (r) => replays(r, { el, ask, of, head, table, count, outward, said }) };

// ---- showing, again and again

let turn = 0, timer = 0, shown = "";

async function show() {
  clearTimeout(timer);
  const mine = ++turn, r = route();
  try {
    const view = r.id ? VIEWS[r.view] : list;
    if (!view) throw new Error(`There is no page ${r.view}; go back to the list of pipelines.`);
    const nodes = (await view(r)).filter(Boolean);
    if (mine !== turn) return;
    const typing = shown === location.hash && document.activeElement?.closest("form");
    // What is being typed, marked or asked must not be swept away; the next turn shows it.
    if (!typing && !(shown === location.hash && String(getSelection()))) {
      const focused = document.activeElement?.id;
      const scrolled = [...page.querySelectorAll(".scroll, pre")].map((node) => [node.scrollLeft, node.scrollTop]);
      page.replaceChildren(...nodes);
      if (shown === location.hash)
        page.querySelectorAll(".scroll, pre").forEach((node, n) => scrolled[n] && ([node.scrollLeft, node.scrollTop] = scrolled[n]));
      if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
      shown = location.hash;
    }
    problem.hidden = true;
  } catch (error) {
    if (mine !== turn) return;
    problem.textContent = error.message;
    problem.hidden = false;
    if (shown !== location.hash) page.replaceChildren(el("p", {}, el("a", { href: "#/" }, "All pipelines")));
  }
  if (mine === turn) timer = setTimeout(show, document.hidden ? POLL * 5 : POLL);
}

// ---- light and dark: Airflow's own choice where we are in its frame, else the system's

function followTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let outer = null;
  try { if (window.parent !== window) outer = parent.document.documentElement; } catch { outer = null; }
  const apply = () => document.documentElement.classList.toggle("dark", outer ? outer.classList.contains("dark") : system.matches);
  if (outer) new MutationObserver(apply).observe(outer, { attributes: true, attributeFilter: ["class"] });
  system.addEventListener("change", apply);
  apply();
}

async function begin() {
  followTheme();
  if (framedFor && !route().id) {
    try {
      const found = await ask("", { dag: framedFor, limit: 1 });
      if (found.items.length) history.replaceState(null, "", address([found.items[0].id]));
    } catch { /* `show` says what is wrong */ }
  }
  addEventListener("hashchange", () => { said.textContent = ""; page.focus({ preventScroll: true }); show(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) show(); });
  show();
}

begin();
