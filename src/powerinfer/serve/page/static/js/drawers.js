// Panels at the right, one at a time, beside the chat: nothing behind them is blocked.

import { byId } from "./dom.js";

/** A panel and the button that shows it. */
export class Drawer {
  /** @type {Drawer[]} */
  static #all = [];
  #panel;
  #button;
  #changed;

  /**
   * @param {string} panel id
   * @param {string} button id
   * @param {(isOpen: boolean) => void} changed
   */
  constructor(panel, button, changed) {
    this.#panel = byId(panel);
    this.#button = byId(button);
    this.#changed = changed;
    this.#button.addEventListener("click", () => this.toggle());
    Drawer.#all.push(this);
  }

  /** @returns {boolean} */
  get isOpen() {
    return !this.#panel.hidden;
  }

  /** @param {boolean} [isOpen] without it: the opposite of now */
  toggle(isOpen = !this.isOpen) {
    if (isOpen === this.isOpen) return;
    if (isOpen) for (const other of Drawer.#all) other.toggle(false);
    this.#panel.hidden = !isOpen;
    this.#button.setAttribute("aria-expanded", String(isOpen));
    this.#changed(isOpen);
    if (isOpen) this.#focus();
  }

  #focus() {
    // A field would raise the keyboard of a phone over half of the panel.
    const field = matchMedia("(hover: hover)").matches && this.#panel.querySelector("input, textarea");
    (field || this.#panel.querySelector("button"))?.focus();
  }

  /** Close the open one and go back to its button. @returns {boolean} whether one was open */
  static closeOpen() {
    const open = Drawer.#all.find((drawer) => drawer.isOpen);
    if (!open) return false;
    open.toggle(false);
    open.#button.focus();
    return true;
  }

  /** @returns {boolean} whether the keyboard is in a panel */
  static hasFocus() {
    return Drawer.#all.some((drawer) => drawer.#panel.contains(document.activeElement));
  }
}
