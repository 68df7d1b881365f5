// What the user set: the system prompt and how tokens are drawn, for all chats of this browser.

import { readItem, readJson, writeItem } from "./storage.js";

const KEY = "powerinfer.settings";
// Of this tab only, until it is closed.
const API_KEY = "powerinfer.api-key";
const MODEL = "powerinfer.model";

/**
 * @typedef {object} NumberField
 * @property {string} name in the request
 * @property {string} label
 * @property {string} hint
 * @property {number} min
 * @property {number} [max]
 * @property {number} step
 */

/** @type {NumberField[]} */
export const NUMBER_FIELDS = [
  { name: "temperature", label: "Temperature", hint: "0 always takes the likeliest token", min: 0, max: 2, step: 0.1 },
  { name: "top_p", label: "Top p", hint: "keep the likeliest tokens up to this share", min: 0, max: 1, step: 0.05 },
  { name: "top_k", label: "Top k", hint: "keep this many tokens; 0 keeps all", min: 0, step: 1 },
  { name: "min_p", label: "Min p", hint: "drop tokens below this share of the likeliest", min: 0, max: 1, step: 0.01 },
  { name: "repeat_penalty", label: "Repeat penalty", hint: "above 1 avoids what was said", min: 0.1, max: 10, step: 0.05 },
  { name: "presence_penalty", label: "Presence penalty", hint: "against tokens that occurred", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", hint: "against tokens that occurred often", min: -2, max: 2, step: 0.1 },
  { name: "max_tokens", label: "Longest answer", hint: "tokens; empty: until the context is full", min: 1, step: 1 },
  { name: "seed", label: "Seed", hint: "the same seed draws the same answer", min: 0, max: 2 ** 32 - 1, step: 1 },
];

/** The settings, which survive a reload. */
export class Settings {
  /** @type {Record<string, string | number>} */
  #values;

  constructor() {
    const stored = readJson(KEY);
    this.#values = stored && typeof stored === "object" ? stored : {};
  }

  /** @returns {string} */
  get systemPrompt() {
    return String(this.#values.system_prompt ?? "");
  }

  /** @returns {string} empty: none */
  get apiKey() {
    return readItem(API_KEY, sessionStorage) ?? "";
  }

  set apiKey(key) {
    writeItem(API_KEY, key || null, sessionStorage);
  }

  /** @returns {string} the model for questions; empty: the server's first, or only one */
  get model() {
    return readItem(MODEL) ?? "";
  }

  set model(name) {
    writeItem(MODEL, name || null);
  }

  /**
   * @param {string} name
   * @returns {string | number | undefined} undefined: the server's default
   */
  get(name) {
    return this.#values[name];
  }

  /**
   * @param {string} name
   * @param {string | number | undefined} value undefined: the server's default
   */
  set(name, value) {
    if (value === undefined || value === "") delete this.#values[name];
    else this.#values[name] = value;
    writeItem(KEY, JSON.stringify(this.#values));
  }

  /** Back to the server's defaults. */
  reset() {
    this.#values = {};
    writeItem(KEY, null);
  }

  /** @returns {Record<string, number>} the fields of a request that are not the server's defaults */
  sampling() {
    const chosen = NUMBER_FIELDS.filter(({ name }) => typeof this.#values[name] === "number");
    return Object.fromEntries(chosen.map(({ name }) => [name, Number(this.#values[name])]));
  }
}
