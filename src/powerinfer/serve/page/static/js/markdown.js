// Markdown as elements that cannot run or load anything. Two libraries guard it: markdown-it takes
// HTML for text, and DOMPurify keeps only the elements and attributes named here.

import DOMPurify from "../vendor/dompurify.mjs";
import MarkdownIt from "../vendor/markdown-it.mjs";
import { frameCode, isSameCode, refillCode } from "./code.js";
import { make } from "./dom.js";

const SAFE_ADDRESS = /^(?:https?:\/\/|mailto:)/i;
// What code.js and the table rule below write: of highlight.js, of fences, of columns.
const SAFE_CLASS = /^(?:hljs-[\w-]+|[a-z]+_{1,2}|language-[\w+#.-]+|align-(?:left|center|right))$/;

const SANITIZED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "em", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
    "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["class", "href", "start"],
  ALLOWED_URI_REGEXP: SAFE_ADDRESS,
  ADD_URI_SAFE_ATTR: ["start"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true });
parser.validateLink = (/** @type {string} */ address) => SAFE_ADDRESS.test(address.trim());
// An address without http:// is more often a file name than a link.
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });

// A picture would load from a foreign server: it becomes a link, which loads when it is clicked.
parser.renderer.rules.image = (/** @type {any[]} */ tokens, /** @type {number} */ place) => {
  const { escapeHtml } = parser.utils;
  const token = tokens[place];
  const text = token.content ? `Picture: ${token.content}` : "Picture";
  return `<a href="${escapeHtml(token.attrGet("src") ?? "")}">${escapeHtml(text)}</a>`;
};

// The page has the first level of headings; styles are not allowed as attributes.
parser.core.ruler.push("page", (/** @type {any} */ state) => {
  for (const token of state.tokens) {
    if (token.type.startsWith("heading_")) {
      token.tag = `h${Math.min(6, Number(token.tag.slice(1)) + 1)}`;
    }
    const align = /text-align:(\w+)/.exec(token.attrGet?.("style") ?? "");
    if (align) token.attrs = [["class", `align-${align[1]}`]];
  }
});

DOMPurify.addHook("uponSanitizeAttribute", (_element, attribute) => {
  if (attribute.attrName !== "class") return;
  const kept = attribute.attrValue.split(/\s+/).filter((name) => SAFE_CLASS.test(name));
  attribute.attrValue = kept.join(" ");
  attribute.keepAttr = kept.length > 0;
});
DOMPurify.addHook("afterSanitizeAttributes", (element) => {
  if (element.tagName !== "A") return;
  element.setAttribute("target", "_blank");
  element.setAttribute("rel", "noopener noreferrer nofollow");
});

/** The HTML of each block that an element shows. @type {WeakMap<Element, string[]>} */
const shownBlocks = new WeakMap();

/**
 * Show Markdown in an element. Blocks that did not change stay, with their focus and selection: a
 * text that grows changes its last block only.
 *
 * @param {HTMLElement} element
 * @param {string} text
 */
export function showMarkdown(element, text) {
  const blocks = renderBlocks(text);
  const shown = shownBlocks.get(element) ?? [];
  blocks.forEach((html, place) => {
    if (html === shown[place]) return;
    const before = element.children[place];
    const block = makeBlock(html);
    if (!before) element.append(block);
    else if (isSameCode(before, block)) refillCode(before, block);
    else before.replaceWith(block);
  });
  while (element.children.length > blocks.length) element.lastElementChild?.remove();
  shownBlocks.set(element, blocks);
}

/**
 * @param {string} text
 * @returns {string[]} HTML of each block: a paragraph, a list, a table, ...
 */
function renderBlocks(text) {
  const environment = {};
  const tokens = parser.parse(text, environment);
  const blocks = [];
  let start = 0;
  tokens.forEach((/** @type {any} */ token, /** @type {number} */ place) => {
    if (token.level !== 0 || token.nesting === 1) return;
    const block = tokens.slice(start, place + 1);
    blocks.push(parser.renderer.render(block, parser.options, environment));
    start = place + 1;
  });
  return blocks;
}

/**
 * @param {string} html
 * @returns {Element} one, also where nothing of the HTML may stay
 */
function makeBlock(html) {
  const safe = sanitize(html);
  for (const pre of safe.querySelectorAll("pre")) frameCode(pre, sanitize);
  for (const table of safe.querySelectorAll("table")) {
    const frame = make("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  const only = safe.children.length === 1 ? safe.firstElementChild : null;
  return only ?? make("div", {}, safe);
}

/**
 * @param {string} html
 * @returns {DocumentFragment}
 */
function sanitize(html) {
  return /** @type {any} */ (DOMPurify.sanitize(html, SANITIZED));
}
