// Which models the server has, and whether it is ready.

import { ApiError, getJson } from "./api.js";
import { byId } from "./dom.js";
import { showModels } from "./models.js";

const ASK_AGAIN = 1000;

/** By the status of a response; 0: there is none. @type {Record<number, string>} */
const STATES = { 0: "not reachable", 401: "wrong API key", 503: "loading" };

/**
 * Show the model's name, or a menu of several, once the server has them.
 *
 * @param {import("./settings.js").Settings} settings
 * @param {boolean} needsKey
 */
export async function showModel(settings, needsKey) {
  const state = byId("server-state");
  const show = (/** @type {string} */ text) => {
    state.textContent = text;
    state.hidden = !text;
  };
  if (needsKey && !settings.apiKey) {
    show("needs an API key");
    return;
  }
  try {
    const { data } = await getJson("v1/models", settings.apiKey);
    showModels(data, settings);
    show("");
  } catch (error) {
    const status = error instanceof ApiError ? error.status : -1;
    show(STATES[status] ?? "does not answer");
    if (status === 0 || status === 503) setTimeout(() => showModel(settings, needsKey), ASK_AGAIN);
  }
}
