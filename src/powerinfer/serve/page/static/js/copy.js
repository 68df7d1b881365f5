// Buttons that copy a text.

import { announce } from "./announcer.js";
import { make } from "./dom.js";
import { icon } from "./icons.js";

const SHOWN_FOR = 1500;

/**
 * @param {string} name for screen readers
 * @param {() => string} text what to copy
 * @param {string} [word] beside the icon
 * @returns {HTMLButtonElement}
 */
export function copyButton(name, text, word = "") {
  const button = make("button", { type: "button", class: word ? "text-button" : "icon-button small" });
  const show = (/** @type {string} */ picture, /** @type {string} */ shown) =>
    button.replaceChildren(icon(picture), ...(shown ? [shown] : []));
  button.setAttribute("aria-label", name);
  button.title = "Copy";
  button.addEventListener("click", async () => {
    const isCopied = await copy(text());
    announce(isCopied ? "Copied" : "The browser did not let the page copy");
    if (!isCopied) return;
    show("check", word && "Copied");
    setTimeout(() => show("copy", word), SHOWN_FOR);
  });
  show("copy", word);
  return button;
}

/**
 * @param {string} text
 * @returns {Promise<boolean>}
 */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

/**
 * For pages over plain http from another machine, which browsers give no clipboard.
 *
 * @param {string} text
 * @returns {boolean}
 */
function copySelected(text) {
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  const area = make("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isCopied;
}
