// Where questions are written, sent, changed and stopped.

import { announce } from "./announcer.js";
import { byId } from "./dom.js";
import { readItem, writeItem } from "./storage.js";

// What is not sent yet survives a reload of the tab.
const DRAFT = "powerinfer.draft";
const HIGHEST = 240;

/** The form below a chat. */
export class Composer {
  #chats;
  #area = byId("message");
  #send = byId("send");
  #stop = byId("stop");
  #banner = byId("editing");
  /** @type {import("./store.js").Message | null} */
  #edited = null;
  #draft = "";
  #mark;

  /**
   * @param {import("./chats.js").Chats} chats
   * @param {(message: import("./store.js").Message | undefined) => void} mark shows which question
   *   is being changed
   */
  constructor(chats, mark) {
    this.#chats = chats;
    this.#mark = mark;
    chats.addEventListener("show", () => this.#show());
    byId("composer").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#area.addEventListener("input", () => this.#typed());
    this.#area.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#key(event));
    this.#stop.addEventListener("click", () => this.stop());
    byId("cancel-edit").addEventListener("click", () => this.cancelEdit());
    this.#fill(readItem(DRAFT, sessionStorage) ?? "");
  }

  /** Put the cursor here. */
  focus() {
    this.#area.focus();
  }

  /** @returns {boolean} whether an answer was being written */
  stop() {
    if (!this.#chats.isWriting(this.#chats.open.id)) return false;
    this.#chats.stop();
    announce("Stopped");
    this.focus();
    return true;
  }

  /** @param {import("./store.js").Message} message a question of the open chat */
  edit(message) {
    if (!this.#edited) this.#draft = this.#area.value;
    this.#setEdited(message);
    this.#fill(message.content);
    this.focus();
    announce("Change the question, then send it. What follows it will be replaced.");
  }

  /** @returns {boolean} whether a question was being changed */
  cancelEdit() {
    if (!this.#edited) return false;
    this.#setEdited(null);
    this.#fill(this.#draft);
    this.focus();
    return true;
  }

  /** @param {import("./store.js").Message | null} message */
  #setEdited(message) {
    this.#edited = message;
    this.#banner.hidden = !message;
    this.#mark(message ?? undefined);
  }

  #show() {
    const { id, messages } = this.#chats.open;
    if (this.#edited && !messages.includes(this.#edited)) this.cancelEdit();
    const isWriting = this.#chats.isWriting(id);
    this.#send.hidden = isWriting;
    this.#stop.hidden = !isWriting;
  }

  #submit() {
    const text = this.#area.value;
    if (!text.trim() || this.#chats.isWriting(this.#chats.open.id)) return;
    const place = this.#edited ? this.#chats.open.messages.indexOf(this.#edited) : undefined;
    const draft = this.#edited ? this.#draft : "";
    this.#setEdited(null);
    this.#fill(draft);
    announce("Writing an answer");
    this.#chats.ask(text, place);
    this.focus();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    // An input method takes Enter for itself while it composes a character.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#submit();
  }

  /** @param {string} text */
  #fill(text) {
    this.#area.value = text;
    this.#typed();
  }

  #typed() {
    this.#send.disabled = !this.#area.value.trim();
    this.#area.style.height = "auto";
    this.#area.style.height = `${Math.min(this.#area.scrollHeight, HIGHEST)}px`;
    if (!this.#edited) writeItem(DRAFT, this.#area.value || null, sessionStorage);
  }
}
