// The menu of models, on a server that has several, and how far the load of the chosen one is.

import { getJson } from "./api.js";
import { byId, make } from "./dom.js";

const ASK_AGAIN = 1000;

/**
 * Offer the server's models; a server with one has no menu.
 *
 * @param {{id: string}[]} models of /v1/models
 * @param {import("./settings.js").Settings} settings
 */
export function showModels(models, settings) {
  const menu = byId("model-menu");
  const names = models.map(({ id }) => id);
  // What was chosen may have gone.
  if (names.length < 2 || !names.includes(settings.model)) settings.model = "";
  menu.hidden = names.length < 2;
  byId("model").classList.toggle("visually-hidden", !menu.hidden);
  menu.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  menu.value = settings.model || names[0];
  menu.onchange = () => {
    settings.model = menu.value;
    showName(menu.value);
  };
  showName(menu.value);
}

/** @param {string} name */
function showName(name) {
  byId("model-name").textContent = name;
  document.title = `${name} – PowerInfer`;
}

/**
 * Show how far the model is loaded, while the open chat waits for its answer.
 *
 * @param {import("./chats.js").Chats} chats
 */
export function followLoads(chats) {
  const menu = byId("model-menu");
  const state = byId("server-state");
  let timer = 0;
  let isShown = false;
  const look = async () => {
    clearTimeout(timer);
    if (menu.hidden) return;
    const isWaiting = chats.isWriting(chats.open.id);
    const models = isWaiting ? await loads() : {};
    const { status, progress } = models[menu.value] ?? {};
    const isLoading = status === "loading";
    if (isLoading || isShown) {
      state.textContent = isLoading ? `loading ${Math.round(100 * progress)} %` : "";
      state.hidden = !isLoading;
    }
    isShown = isLoading;
    clearTimeout(timer);
    if (isWaiting && status !== "loaded") timer = setTimeout(look, ASK_AGAIN);
  };
  chats.addEventListener("list", look);
}

/** @returns {Promise<Record<string, {status: string, progress: number}>>} */
async function loads() {
  try {
    return (await getJson("health", "")).models ?? {};
  } catch {
    return {};
  }
}
