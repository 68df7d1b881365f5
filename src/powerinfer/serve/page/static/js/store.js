// The chats, in the browser's storage: one entry each, so that tabs do not overwrite each other's.

import { readJson, writeItem } from "./storage.js";

const PREFIX = "powerinfer.chat.";
const LONGEST_TITLE = 60;
// Who writes an answer stores it every second; after so many milliseconds nobody does.
const SILENCE = 15_000;

/** @type {import("./failures.js").Failure} */
const LEFT = {
  title: "The answer broke off",
  detail: "The page was closed while it was written.",
  remedy: "retry",
};

/**
 * @typedef {object} Drafts tokens that were guessed, see the server's documentation
 * @property {number} drafted
 * @property {number} accepted
 */

/**
 * @typedef {object} Message
 * @property {"user" | "assistant"} role
 * @property {string} content
 * @property {string} [reasoning] what the model thought before it answered
 * @property {"writing" | "done" | "stopped" | "length" | "failed"} [state] of an answer
 * @property {import("./failures.js").Failure} [failure] why the answer broke off
 * @property {{tokens: number, perSecond: number, firstAfter: number, drafts?: Drafts}} [figures] times in seconds
 */

/**
 * @typedef {object} Chat
 * @property {string} id
 * @property {string} title
 * @property {number} changed milliseconds since 1970
 * @property {Message[]} messages
 */

/** A chat without messages, which is not stored before it has one. @returns {Chat} */
export function newChat() {
  // Not randomUUID: browsers offer it to https and to this machine only.
  const numbers = crypto.getRandomValues(new Uint32Array(3));
  const id = Array.from(numbers, (number) => number.toString(36)).join("");
  return { id, title: "", changed: Date.now(), messages: [] };
}

/** All chats that are stored, the latest first. @returns {Chat[]} */
export function loadChats() {
  const chats = [];
  for (const key of storedKeys()) {
    const chat = loadChat(key.slice(PREFIX.length));
    if (chat) chats.push(chat);
  }
  return chats.sort((one, other) => other.changed - one.changed);
}

/** @returns {string[]} */
function storedKeys() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  } catch {
    return [];
  }
}

/**
 * @param {string} id
 * @returns {Chat | null} null: it is not there, or not as we write it
 */
export function loadChat(id) {
  const chat = readJson(PREFIX + id);
  if (!isChat(chat) || chat.id !== id) return null;
  return Date.now() - chat.changed > SILENCE ? leftChat(chat) : chat;
}

/**
 * The chat as it is when nobody writes its answer any more.
 *
 * @param {Chat} chat
 * @returns {Chat}
 */
export function leftChat(chat) {
  const messages = chat.messages.map((message) =>
    message.state === "writing" ? { ...message, state: "failed", failure: LEFT } : message,
  );
  return { ...chat, messages: /** @type {Message[]} */ (messages) };
}

/**
 * @param {any} value
 * @returns {value is Chat}
 */
function isChat(value) {
  return (
    typeof value?.id === "string" &&
    typeof value.title === "string" &&
    typeof value.changed === "number" &&
    Array.isArray(value.messages) &&
    value.messages.every(
      (/** @type {any} */ one) => typeof one?.content === "string" && typeof one.role === "string",
    )
  );
}

/**
 * @param {Chat} chat
 * @returns {boolean} whether it is stored: false where the storage is full
 */
export function saveChat(chat) {
  return writeItem(PREFIX + chat.id, JSON.stringify(chat));
}

/** @param {string} id */
export function removeChat(id) {
  writeItem(PREFIX + id, null);
}

/**
 * The chat that a change of the storage by another tab concerns.
 *
 * @param {string | null} key
 * @returns {string | null} its id; null: none
 */
export function changedChat(key) {
  return key?.startsWith(PREFIX) ? key.slice(PREFIX.length) : null;
}

/**
 * A title from the first question.
 *
 * @param {string} question
 * @returns {string}
 */
export function titleOf(question) {
  const line = question.trim().replaceAll(/\s+/g, " ");
  return line.length <= LONGEST_TITLE ? line : `${line.slice(0, LONGEST_TITLE - 1).trimEnd()}…`;
}
