// Requests to the server. Addresses are relative, so that the page also works below a path.

import { readEvents } from "./events.js";

const BROKEN = "The connection ended in the middle of the answer.";

/** What a request that got no answer was refused with. */
export class ApiError extends Error {
  /**
   * @param {string} message of the server, or ours
   * @param {object} [facts]
   * @param {number} [facts.status] 0: there is no response
   * @param {string | null} [facts.code] OpenAI's code of the error
   * @param {number | null} [facts.retryAfter] seconds
   */
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/**
 * @typedef {object} Delta what an event adds to an answer
 * @property {string} content
 * @property {string} reasoning
 * @property {string | null} finish why it ended; null while it goes on
 * @property {any} usage OpenAI's object, with the last event; else null
 */

/**
 * Ask for an answer and read it as it is written.
 *
 * @param {object} body of /v1/chat/completions
 * @param {string} key API key; empty: none
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Delta>}
 * @throws {ApiError} refused, or ended before the end of the answer
 */
export async function* streamChat(body, key, signal) {
  const response = await request("v1/chat/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.body) throw new ApiError("The answer is empty.");
  try {
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") return;
      yield delta(JSON.parse(data));
    }
  } catch (error) {
    throw error instanceof ApiError || signal.aborted ? error : new ApiError(BROKEN);
  }
  throw new ApiError(BROKEN);
}

/**
 * @param {any} event
 * @returns {Delta}
 */
function delta(event) {
  if (event.error) throw refusal(0, { error: { code: "error", ...event.error } }, null);
  const choice = event.choices?.[0] ?? {};
  return {
    content: choice.delta?.content ?? "",
    reasoning: choice.delta?.reasoning_content ?? "",
    finish: choice.finish_reason ?? null,
    usage: event.usage ?? null,
  };
}

/**
 * A JSON answer of a GET request.
 *
 * @param {string} path
 * @param {string} key
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function getJson(path, key, signal) {
  return (await request(path, key, { signal })).json();
}

/**
 * @param {string} path
 * @param {string} key
 * @param {RequestInit} options
 * @returns {Promise<Response>}
 */
async function request(path, key, options) {
  const headers = new Headers(options.headers);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError("The server does not answer.");
  }
  if (response.ok) return response;
  const text = await response.text();
  throw refusal(response.status, parse(text), response.headers.get("Retry-After"));
}

/**
 * @param {string} text
 * @returns {any}
 */
function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

/**
 * @param {number} status
 * @param {any} body in OpenAI's shape
 * @param {string | null} retryAfter
 * @returns {ApiError}
 */
function refusal(status, body, retryAfter) {
  const error = body?.error ?? {};
  return new ApiError(error.message ?? body?.detail ?? `The server answered with status ${status}.`, {
    status,
    code: error.code ?? null,
    retryAfter: retryAfter === null || Number.isNaN(Number(retryAfter)) ? null : Number(retryAfter),
  });
}
