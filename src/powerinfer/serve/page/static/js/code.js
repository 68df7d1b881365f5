// Blocks of code in answers: the language, a button that copies, colours.

import { copyButton } from "./copy.js";
import { make } from "./dom.js";

// Colours of longer code would hold up the page while it is written.
const MOST_COLOURED = 50_000;

/** @type {any} */
let highlighter = null;
/** @type {Promise<void> | null} */
let loading = null;

/**
 * Put a frame around a block of code.
 *
 * @param {HTMLElement} pre
 * @param {(html: string) => DocumentFragment} sanitize
 */
export function frameCode(pre, sanitize) {
  const code = pre.querySelector("code");
  if (!code) return;
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const frame = make(
    "div",
    { class: "code" },
    make(
      "div",
      { class: "code-head" },
      make("span", {}, language || "text"),
      copyButton("Copy code", () => code.textContent ?? "", "Copy"),
    ),
  );
  frame.dataset.language = language;
  // Long lines scroll, also by keys.
  pre.tabIndex = 0;
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", language ? `Code in ${language}` : "Code");
  pre.replaceWith(frame);
  frame.append(pre);
  colour(code, language, sanitize);
}

/**
 * @param {Element} one
 * @param {Element} other
 * @returns {boolean} whether both are blocks of code in one language
 */
export function isSameCode(one, other) {
  return [one, other].every((element) => element.matches(".code")) &&
    /** @type {HTMLElement} */ (one).dataset.language ===
      /** @type {HTMLElement} */ (other).dataset.language;
}

/**
 * Give a block another's code and let its scroll position and button be.
 *
 * @param {Element} block
 * @param {Element} other
 */
export function refillCode(block, other) {
  block.querySelector("code")?.replaceChildren(...(other.querySelector("code")?.childNodes ?? []));
}

/**
 * @param {HTMLElement} code
 * @param {string} language
 * @param {(html: string) => DocumentFragment} sanitize
 */
function colour(code, language, sanitize) {
  const text = code.textContent ?? "";
  if (!language || text.length > MOST_COLOURED) return;
  if (!highlighter) loading ??= load(sanitize);
  if (!highlighter?.getLanguage(language)) return;
  const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
  code.replaceChildren(sanitize(value));
}

/**
 * The first code of a page loads the library; without it code stays plain.
 *
 * @param {(html: string) => DocumentFragment} sanitize
 */
async function load(sanitize) {
  try {
    highlighter = (await import("../vendor/highlight.mjs")).default;
  } catch (error) {
    console.warn("code stays without colours:", error);
    return;
  }
  for (const frame of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".code"))) {
    const code = frame.querySelector("code");
    if (code) colour(code, frame.dataset.language ?? "", sanitize);
  }
}
