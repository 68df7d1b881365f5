// One message of a chat on the page: a question, or an answer with what belongs to it.

import { copyButton } from "./copy.js";
import { make } from "./dom.js";
import { icon } from "./icons.js";
import { percent } from "./layer_chart.js";
import { showMarkdown } from "./markdown.js";

/** @typedef {import("./store.js").Message} Message */

/**
 * @typedef {object} Actions
 * @property {(message: Message) => void} edit
 * @property {() => void} regenerate
 * @property {() => void} openSettings
 * @property {() => void} startNew
 */

/** A question, shown as it was typed. */
export class Question {
  /** @param {Message} message @param {Actions} actions */
  constructor(message, actions) {
    this.element = make(
      "article",
      { class: "turn question", "aria-label": "You" },
      make("div", { class: "bubble" }, message.content),
      make(
        "div",
        { class: "actions" },
        copyButton("Copy", () => message.content),
        iconButton("Edit", "edit", () => actions.edit(message)),
      ),
    );
  }

  /** A question does not change: an edited one is another message. */
  update() {}

  /** @param {boolean} isEdited */
  mark(isEdited) {
    this.element.classList.toggle("edited", isEdited);
  }
}

/** An answer: thoughts, text, what went wrong, and what can be done with it. */
export class Answer {
  #message;
  #actions;
  #thoughts;
  #text = make("div", { class: "markdown" });
  #ending = make("div", { class: "ending" });

  /** @param {Message} message @param {Actions} actions */
  constructor(message, actions) {
    this.#message = message;
    this.#actions = actions;
    this.#thoughts = makeThoughts();
    this.element = make(
      "article",
      { class: "turn answer", "aria-label": "Answer" },
      this.#text,
      this.#ending,
    );
  }

  /** What a screen reader says when the answer is complete. @returns {string} */
  get spoken() {
    const { failure } = this.#message;
    const text = this.#text.innerText.trim();
    return failure ? `${text} ${failure.title}. ${failure.detail}` : text;
  }

  /** @param {boolean} isLast of the chat's messages */
  update(isLast) {
    const { content, reasoning, state } = this.#message;
    const isWriting = state === "writing";
    this.element.setAttribute("aria-busy", String(isWriting));
    this.element.classList.toggle("waiting", isWriting && !content);
    if (reasoning) {
      if (!this.#thoughts.element.parentElement) this.element.prepend(this.#thoughts.element);
      this.#thoughts.show(reasoning, isWriting && !content);
    }
    showMarkdown(this.#text, content);
    this.#ending.replaceChildren(...(isWriting ? [] : this.#endings(isLast)));
  }

  /**
   * @param {boolean} isLast
   * @returns {HTMLElement[]}
   */
  #endings(isLast) {
    const { content, failure, state } = this.#message;
    const parts = [];
    if (failure) parts.push(this.#failure(failure, isLast));
    if (state === "stopped") parts.push(make("p", { class: "note" }, "You stopped this answer."));
    if (state === "length") parts.push(make("p", { class: "note" }, LIMIT));
    const actions = make("div", { class: "actions" });
    if (content) actions.append(copyButton("Copy", () => content));
    if (isLast && !failure) {
      actions.append(iconButton("Regenerate", "redo", this.#actions.regenerate));
    }
    actions.append(make("span", { class: "figures" }, figures(this.#message)));
    return [...parts, actions];
  }

  /**
   * @param {import("./failures.js").Failure} failure
   * @param {boolean} isLast
   * @returns {HTMLElement}
   */
  #failure({ title, detail, remedy }, isLast) {
    const { regenerate, openSettings, startNew } = this.#actions;
    const buttons = make("div", { class: "failure-actions" });
    if (remedy === "settings") buttons.append(wordButton("Open settings", openSettings));
    if (remedy === "new") buttons.append(wordButton("Start a new chat", startNew));
    if (isLast) buttons.append(wordButton("Retry", regenerate));
    return make(
      "div",
      { class: "failure" },
      icon("alert"),
      make("div", {}, make("strong", {}, title), make("p", {}, detail), buttons),
    );
  }
}

const LIMIT =
  "The answer ended at the limit of its length: the longest answer in the settings, or the model's context.";

/** Thoughts of a model that reasons, folded. */
function makeThoughts() {
  const summary = make("summary", {});
  const text = make("div", { class: "markdown" });
  const element = make("details", { class: "thoughts" }, summary, text);
  const show = (/** @type {string} */ reasoning, /** @type {boolean} */ isThinking) => {
    element.classList.toggle("thinking", isThinking);
    summary.textContent = isThinking ? "Thinking…" : "Thoughts";
    // Folded, they need no elements.
    if (element.open) showMarkdown(text, reasoning);
    element.ontoggle = () => element.open && showMarkdown(text, reasoning);
  };
  return { element, show };
}

/**
 * @param {Message} message
 * @returns {string}
 */
function figures({ figures: known }) {
  if (!known) return "";
  const { tokens, perSecond, firstAfter, drafts } = known;
  const words = `${tokens} tokens · ${perSecond.toFixed(1)} tokens/s · first after ${firstAfter.toFixed(2)} s`;
  const steps = tokens - 1 - (drafts?.accepted ?? 0);
  if (!drafts || steps < 1) return words;
  const share = percent(drafts.accepted / drafts.drafted);
  const perStep = ((tokens - 1) / steps).toFixed(2);
  return `${words} · ${share} of ${drafts.drafted} drafted tokens accepted · ${perStep} tokens per step`;
}

/**
 * @param {string} name
 * @param {string} picture
 * @param {() => void} click
 * @returns {HTMLElement}
 */
function iconButton(name, picture, click) {
  const attributes = { type: "button", class: "icon-button small", "aria-label": name, title: name };
  return make("button", { ...attributes, click }, icon(picture));
}

/**
 * @param {string} word
 * @param {() => void} click
 * @returns {HTMLElement}
 */
function wordButton(word, click) {
  return make("button", { type: "button", class: "wide-button inline", click }, word);
}
