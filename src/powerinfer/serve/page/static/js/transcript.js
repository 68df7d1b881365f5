// The messages of the open chat, and where they are scrolled to.

import { announce } from "./announcer.js";
import { byId } from "./dom.js";
import { Answer, Question } from "./turns.js";

// Nearer to the end than this (pixels), the page follows an answer that grows.
const NEAR = 80;
// Pieces of an answer are shown together: at most this often (milliseconds), and in half of the time.
const PAUSE = 50;
const LONGEST_SPOKEN = 2000;

/** Shows what `Chats` holds. */
export class Transcript {
  #chats;
  #actions;
  #scroller = byId("transcript");
  #turns = byId("turns");
  #toEnd = byId("to-end");
  /** @type {WeakMap<import("./store.js").Message, Question | Answer>} */
  #views = new WeakMap();
  #shown = "";
  #follows = true;
  #isPlanned = false;
  #took = 0;

  /**
   * @param {import("./chats.js").Chats} chats
   * @param {import("./turns.js").Actions} actions
   */
  constructor(chats, actions) {
    this.#chats = chats;
    this.#actions = actions;
    chats.addEventListener("show", () => this.show());
    chats.addEventListener("grow", () => this.#plan());
    chats.addEventListener("end", (event) => this.#speak(/** @type {CustomEvent} */ (event).detail));
    this.#scroller.addEventListener("scroll", () => this.#scrolled());
    new ResizeObserver(() => this.#follow()).observe(this.#turns);
    new ResizeObserver(() => this.#follow()).observe(this.#scroller);
    this.#toEnd.addEventListener("click", () => this.toEnd());
  }

  /** Show the open chat; views of messages that were there stay. */
  show() {
    const { id, messages } = this.#chats.open;
    const views = messages.map((message) => this.#view(message));
    const elements = views.map(({ element }) => element);
    byId("welcome").hidden = messages.length > 0;
    const current = [...this.#turns.children];
    if (elements.length !== current.length || elements.some((one, at) => one !== current[at])) {
      for (const old of current) if (!elements.includes(old)) old.remove();
      this.#turns.append(...elements.filter((element) => !element.isConnected));
    }
    views.forEach((view, at) => view.update(at === views.length - 1));
    if (id !== this.#shown || messages.at(-1)?.state === "writing") this.toEnd();
    this.#shown = id;
  }

  /** Scroll to the end, and follow what comes. */
  toEnd() {
    this.#follows = true;
    this.#follow();
  }

  /** @param {import("./store.js").Message | undefined} edited the question that is being changed */
  mark(edited) {
    for (const message of this.#chats.open.messages) {
      const view = this.#views.get(message);
      if (view instanceof Question) view.mark(message === edited);
    }
  }

  /** @param {import("./store.js").Message} message */
  #view(message) {
    let view = this.#views.get(message);
    if (!view) {
      const Kind = message.role === "user" ? Question : Answer;
      view = new Kind(message, this.#actions);
      this.#views.set(message, view);
    }
    return view;
  }

  #plan() {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    setTimeout(() => {
      this.#isPlanned = false;
      const started = performance.now();
      const last = this.#chats.open.messages.at(-1);
      if (last) this.#view(last).update(true);
      this.#took = performance.now() - started;
    }, Math.max(PAUSE, this.#took));
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    this.#follows = scrollHeight - scrollTop - clientHeight < NEAR;
    this.#toEnd.hidden = this.#follows;
  }

  #follow() {
    if (this.#follows) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#scrolled();
  }

  /** @param {import("./store.js").Chat} chat */
  #speak(chat) {
    if (chat !== this.#chats.open) return;
    const view = this.#views.get(chat.messages[chat.messages.length - 1]);
    if (!(view instanceof Answer)) return;
    const text = view.spoken;
    announce(text.length <= LONGEST_SPOKEN ? text : `${text.slice(0, LONGEST_SPOKEN)} … and more`);
  }
}
