// Questions to the user, one at a time.

import { byId, make } from "./dom.js";

/**
 * @param {string} heading
 * @param {string} text
 * @param {string} word on the button that agrees
 * @returns {Promise<boolean>}
 */
export async function confirm(heading, text, word) {
  return (await open(heading, make("p", {}, text), word, "danger")) !== null;
}

/**
 * @param {string} heading
 * @param {string} label
 * @param {string} value to begin with
 * @param {string} word on the button that agrees
 * @returns {Promise<string | null>} null: cancelled
 */
export async function askForText(heading, label, value, word) {
  const input = make("input", { type: "text", name: "text", value, autocomplete: "off" });
  const answer = open(heading, make("label", { class: "field" }, label, input), word, "primary");
  input.select();
  return (await answer) === null ? null : input.value;
}

/**
 * @param {string} heading
 * @param {HTMLElement} content
 * @param {string} word
 * @param {string} kind of the button that agrees
 * @returns {Promise<string | null>}
 */
function open(heading, content, word, kind) {
  const dialog = byId("dialog");
  const cancel = make("button", { type: "button", class: "wide-button inline" }, "Cancel");
  cancel.addEventListener("click", () => dialog.close(""));
  const agree = make("button", { type: "submit", class: `wide-button inline ${kind}` }, word);
  const form = make(
    "form",
    {},
    make("h2", { id: "dialog-heading" }, heading),
    content,
    make("div", { class: "dialog-actions" }, cancel, agree),
  );
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    dialog.close("agreed");
  });
  dialog.replaceChildren(form);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue || null), { once: true });
  });
}
