// Questions to the server.
import { ROOT } from "./parts.js";

const ALL = `${ROOT}/conduit/v1`;
export const API = `${ALL}/pipelines`;

export class Refusal extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** @param {string} path @param {Query} [query] @param {Json} [body] @returns {Promise<Json>} */
export const ask = (path, query, body) => asked(API + path, query, body);

/** The issues of all pipelines. @param {Query} query @returns {Promise<AllIssues>} */
export const askOfAll = (query) => asked(`${ALL}/issues`, query);

/** @param {string} url @param {Query} [query] @param {Json} [body] @returns {Promise<Json>} */
async function asked(url, query = {}, body = undefined) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const answer = await fetch(`${url}${kept.length ? `?${new URLSearchParams(kept.map(([name, value]) => [name, String(value)]))}` : ""}`, {
    method: body ? "POST" : "GET",
    headers: /** @type {Record<string, string>} */ (body ? { "Content-Type": "application/json", "X-Conduit-Request": "1" } : {}),
    body: body && JSON.stringify(body),
  });
  const found = await answer.json().catch(() => ({ detail: `the server answered ${answer.status}; look at its log` }));
  if (!answer.ok) throw new Refusal(answer.status, answer.status === 401 ? "You are not signed in any more: reload Airflow." : found.detail);
  return found;
}

/** @param {string} id @param {(string | number)[]} more */
export const of = (id, ...more) => "/" + [id, ...more].map(encodeURIComponent).join("/");
