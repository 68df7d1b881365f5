// The chats and their answers: asking, stopping, asking again. Knows nothing of the page; it tells
// of changes by events.

import { streamChat } from "./api.js";
import { describe } from "./failures.js";
import {
  changedChat,
  leftChat,
  loadChat,
  loadChats,
  newChat,
  removeChat,
  saveChat,
  titleOf,
} from "./store.js";

// An answer that is being written is stored this often, beside when the page is left.
const SAVE_EVERY = 1000;

/** @typedef {import("./store.js").Chat} Chat */
/** @typedef {import("./store.js").Message} Message */
/** @typedef {{chat: Chat, controller: AbortController, saved: number}} Writing */

/**
 * Events: `list` (a chat came, went or was renamed), `show` (another chat is open, or messages came
 * or went), `grow` (the open chat's answer has more), `end` (an answer ended; `detail` is its chat),
 * `full` (the browser's storage is).
 */
export class Chats extends EventTarget {
  #settings;
  /** @type {Map<string, Chat>} */
  #chats = new Map();
  /** @type {Map<string, Writing>} */
  #writing = new Map();
  #isLeft = false;
  /** The open chat. @type {Chat} */
  open = newChat();

  /** @param {import("./settings.js").Settings} settings */
  constructor(settings) {
    super();
    this.#settings = settings;
    for (const chat of loadChats()) this.#chats.set(chat.id, chat);
    addEventListener("pagehide", () => this.#leave());
    addEventListener("pageshow", () => {
      this.#isLeft = false;
    });
    addEventListener("storage", ({ key }) => this.#follow(changedChat(key)));
  }

  /** @returns {Chat[]} the latest first */
  get all() {
    return [...this.#chats.values()].sort((one, other) => other.changed - one.changed);
  }

  /** @param {string} id @returns {boolean} whether an answer of this chat is being written */
  isWriting(id) {
    return this.#writing.has(id);
  }

  /** @param {string} id */
  show(id) {
    this.open = this.#chats.get(id) ?? newChat();
    this.#tell("show", "list");
  }

  /** Open a chat without messages. */
  startNew() {
    this.open = newChat();
    this.#tell("show", "list");
  }

  /** @param {string} id @param {string} title */
  rename(id, title) {
    const chat = this.#chats.get(id);
    if (!chat || !title.trim()) return;
    chat.title = titleOf(title);
    this.#save(chat);
    this.#tell("list");
  }

  /** @param {string} id */
  remove(id) {
    this.#writing.get(id)?.controller.abort();
    this.#chats.delete(id);
    removeChat(id);
    if (this.open.id === id) this.startNew();
    else this.#tell("list");
  }

  /**
   * Ask a question in the open chat.
   *
   * @param {string} question
   * @param {number} [place] of an earlier question, which it replaces with all that follows
   */
  ask(question, place = this.open.messages.length) {
    const chat = this.open;
    chat.messages.length = Math.min(place, chat.messages.length);
    chat.messages.push({ role: "user", content: question });
    chat.title ||= titleOf(question);
    void this.#answer(chat);
  }

  /** Replace the last answer of the open chat by another. */
  regenerate() {
    const { messages } = this.open;
    if (messages.at(-1)?.role === "assistant") messages.pop();
    if (messages.length) void this.#answer(this.open);
  }

  /** End the answer that is being written in the open chat. */
  stop() {
    this.#writing.get(this.open.id)?.controller.abort();
  }

  /** @param {Chat} chat */
  async #answer(chat) {
    this.#writing.get(chat.id)?.controller.abort();
    const body = this.#request(chat);
    /** @type {Message} */
    const answer = { role: "assistant", content: "", state: "writing" };
    chat.messages.push(answer);
    const writing = { chat, controller: new AbortController(), saved: 0 };
    this.#writing.set(chat.id, writing);
    this.#chats.set(chat.id, chat);
    this.#save(chat);
    this.#tell("list", "show");
    try {
      await this.#write(body, answer, writing);
    } catch (error) {
      const isStopped = writing.controller.signal.aborted;
      answer.state = isStopped ? "stopped" : "failed";
      if (!isStopped) answer.failure = describe(error);
    }
    // Not where a question was asked again, or the chat deleted, in the meantime.
    if (this.#writing.get(chat.id) === writing) this.#writing.delete(chat.id);
    if (this.#chats.get(chat.id) === chat) this.#save(chat);
    if (this.open === chat) this.#tell("show");
    this.#tell("list");
    this.dispatchEvent(new CustomEvent("end", { detail: chat }));
  }

  /**
   * @param {object} body
   * @param {Message} answer
   * @param {Writing} writing
   */
  async #write(body, answer, writing) {
    const asked = performance.now();
    let first = 0;
    let usage = null;
    const { signal } = writing.controller;
    for await (const delta of streamChat(body, this.#settings.apiKey, signal)) {
      if (delta.content || delta.reasoning) {
        first ||= performance.now();
        answer.content += delta.content;
        if (delta.reasoning) answer.reasoning = (answer.reasoning ?? "") + delta.reasoning;
        this.#grown(writing);
      }
      if (delta.finish) answer.state = delta.finish === "length" ? "length" : "done";
      usage = delta.usage ?? usage;
    }
    if (answer.state === "writing") answer.state = "done";
    const seconds = (performance.now() - first) / 1000;
    const tokens = usage?.completion_tokens ?? 0;
    if (first && tokens > 1 && seconds > 0) {
      const times = { perSecond: (tokens - 1) / seconds, firstAfter: (first - asked) / 1000 };
      answer.figures = { tokens, ...times, ...draftsOf(usage) };
    }
  }

  /** @param {Writing} writing */
  #grown(writing) {
    if (Date.now() - writing.saved > SAVE_EVERY) {
      writing.saved = Date.now();
      this.#save(writing.chat);
    }
    if (this.open === writing.chat) this.#tell("grow");
  }

  /** @param {Chat} chat */
  #request(chat) {
    const messages = chat.messages.map(({ role, content }) => ({ role, content }));
    const system = this.#settings.systemPrompt;
    const all = system.trim() ? [{ role: "system", content: system }, ...messages] : messages;
    const { model } = this.#settings;
    return { ...(model && { model }), messages: all, ...this.#settings.sampling() };
  }

  /** @param {Chat} chat */
  #save(chat) {
    if (this.#isLeft) return;
    chat.changed = Date.now();
    if (!saveChat(chat)) this.#tell("full");
  }

  /**
   * The page is left, perhaps for a reload: what was written so far stays, and says so. That the
   * connection ends then is no news.
   */
  #leave() {
    for (const { chat } of this.#writing.values()) this.#save(leftChat(chat));
    this.#isLeft = true;
  }

  /**
   * Another tab changed a chat. What is being written here is newer.
   *
   * @param {string | null} id
   */
  #follow(id) {
    if (id === null || this.#writing.has(id)) return;
    const chat = loadChat(id);
    if (chat) this.#chats.set(id, chat);
    else this.#chats.delete(id);
    if (chat && this.open.id === id) this.show(id);
    else this.#tell("list");
  }

  /** @param {...string} names */
  #tell(...names) {
    for (const name of names) this.dispatchEvent(new Event(name));
  }
}

/**
 * @param {any} usage of OpenAI's API
 * @returns {{drafts?: import("./store.js").Drafts}} nothing where no token was drafted
 */
function draftsOf(usage) {
  const details = usage?.completion_tokens_details;
  const accepted = details?.accepted_prediction_tokens ?? 0;
  const drafted = accepted + (details?.rejected_prediction_tokens ?? 0);
  return drafted ? { drafts: { drafted, accepted } } : {};
}
