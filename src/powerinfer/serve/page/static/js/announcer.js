// What screen readers say. Answers are said when they are complete, not token by token.

import { byId } from "./dom.js";

/**
 * Say a text once whatever is being said has ended.
 *
 * @param {string} text
 */
export function announce(text) {
  const region = byId("announcer");
  // The same text again is said again only if it went away in between.
  region.textContent = "";
  setTimeout(() => {
    region.textContent = text;
  }, 50);
}
