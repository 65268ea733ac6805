// A pipeline as it goes: one connection for all that a page shows (docs/api.md), and none while nobody looks.
import { API, ask, of } from "./ask.js";
import { trouble } from "./head.js";

const POLL = 3000, SILENT = 6000, STREAM_AGAIN = 30000;
const CURVES = 10; // seconds between two sets of curves at least

// What came, put over what was known: of sources and destinations only those come that changed.
/** @param {Live} known @param {News} news @returns {Live} */
function merged(known, news) {
  return { ...known, ...news, sources: renewed(known.sources, news.sources), destinations: renewed(known.destinations, news.destinations) };
}

/** @template {{ id: string }} T @param {T[]} known @param {T[]} [news] */
function renewed(known, news = []) {
  const fresh = new Map(news.map((each) => [each.id, each]));
  return known.map((each) => fresh.get(each.id) ?? each);
}

// Calls `look` with the pipeline, `series` with its curves of the last `seconds`. Where no stream is to be had (too many are
// open, or a proxy holds back what it passes on) it asks from time to time, and tries a stream again later.
/**
 * @param {string} id @param {{ seconds: number, most: number }} curves
 * @param {{ look: (p: Live) => void, series: (curves: Series) => void, failed: (error: Error) => void }} heeds
 */
export function live(id, { seconds, most }, { look, series, failed }) {
  let /** @type {EventSource | null} */ source = null, /** @type {Live | null} */ known = null, timer = 0, closed = false, curvesDue = 0, polling = 0;

  function stop() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  // The first thing that comes is all of it, also where the stream begins again.
  /** @param {Live | News} news */
  function heard(news) {
    if (news.graph) known = news;
    else if (known) known = merged(known, news);
    else return;
    trouble(null);
    look(known);
  }

  function quiet() {
    clearTimeout(timer);
    timer = setTimeout(poll, SILENT);
  }

  function stream() {
    stop();
    const here = new EventSource(`${API}${of(id, "live")}?${new URLSearchParams({ seconds: String(seconds), most: String(most) })}`);
    source = here;
    /** @param {string} name @param {(found: Json) => void} heed */
    const on = (name, heed) => here.addEventListener(name, (event) => { quiet(); heed(JSON.parse(event.data)); });
    on("look", heard);
    on("series", series);
    on("problem", (found) => trouble(found.detail));
    // It connects again by itself, unless the server has refused it.
    here.addEventListener("error", () => { if (source?.readyState === EventSource.CLOSED) poll(); });
    polling = 0;
    quiet();
  }

  async function poll() {
    stop();
    polling ||= Date.now();
    try {
      const [found, graph] = await Promise.all([ask(of(id)), ask(of(id, "topology"))]);
      if (closed || document.hidden || source) return;
      heard({ ...found, graph });
      if (Date.now() > curvesDue) {
        const curves = await ask(of(id, "series"), { seconds, most });
        curvesDue = Date.now() + 1000 * Math.max(CURVES, curves.step / 10);
        if (!closed) series(curves);
      }
    } catch (error) {
      if (closed) return;
      if (!known) { close(); failed(error); return; }
      trouble(error.message);
    }
    if (!closed && !document.hidden) timer = setTimeout(Date.now() - polling > STREAM_AGAIN ? stream : poll, POLL);
  }

  function seen() {
    if (document.hidden) stop();
    else stream();
  }

  function close() {
    closed = true;
    stop();
    document.removeEventListener("visibilitychange", seen);
  }

  document.addEventListener("visibilitychange", seen);
  seen();
  return close;
}
