// The list of chats: beside the open one, or over it on a phone.

import { askForText, confirm } from "./dialogs.js";
import { byId, make } from "./dom.js";
import { icon } from "./icons.js";

const NARROW = matchMedia("(max-width: 760px)");

/** The list, and the drawer that it is on a phone. */
export class Sidebar {
  #chats;
  #element = byId("sidebar");
  #opener = byId("show-chats");
  #list = byId("chat-list");
  #picked;

  /**
   * @param {import("./chats.js").Chats} chats
   * @param {() => void} picked what to do when a chat was chosen
   */
  constructor(chats, picked) {
    this.#chats = chats;
    this.#picked = picked;
    chats.addEventListener("list", () => this.#show());
    byId("new-chat").addEventListener("click", () => this.startNew());
    this.#opener.addEventListener("click", () => this.#slide(true));
    byId("close-chats").addEventListener("click", () => this.close());
    byId("scrim").addEventListener("click", () => this.close());
    NARROW.addEventListener("change", () => this.#slide(false));
    this.#show();
  }

  /** Open a chat without messages. */
  startNew() {
    this.#chats.startNew();
    this.#slide(false);
    this.#picked();
  }

  /** @returns {boolean} whether it was open over the page */
  close() {
    if (!this.#element.classList.contains("open")) return false;
    this.#slide(false);
    this.#opener.focus();
    return true;
  }

  /** @param {boolean} isOpen */
  #slide(isOpen) {
    this.#element.classList.toggle("open", isOpen);
    byId("scrim").hidden = !isOpen;
    byId("page").inert = isOpen;
    this.#opener.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) byId("new-chat").focus();
  }

  #show() {
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.id;
    const all = this.#chats.all;
    this.#list.replaceChildren(...all.map((chat) => this.#row(chat)));
    byId("no-chats").hidden = all.length > 0;
    if (focused) document.getElementById(focused)?.focus();
  }

  /** @param {import("./store.js").Chat} chat */
  #row(chat) {
    const isOpen = chat.id === this.#chats.open.id;
    const id = `chat-${chat.id}`;
    const open = () => {
      this.#chats.show(chat.id);
      this.#slide(false);
      this.#picked();
    };
    return make(
      "li",
      { class: this.#chats.isWriting(chat.id) ? "row writing" : "row" },
      make(
        "button",
        { type: "button", id, class: "chat-title", "aria-current": String(isOpen), click: open },
        chat.title,
      ),
      this.#tool("Rename", "rename", id, () => this.#rename(chat)),
      this.#tool("Delete", "trash", id, () => this.#remove(chat)),
    );
  }

  /** @param {string} name @param {string} picture @param {string} of @param {() => void} click */
  #tool(name, picture, of, click) {
    const attributes = { type: "button", class: "icon-button small", "aria-label": name, title: name };
    const id = `${name}-${of}`;
    return make("button", { ...attributes, id, "aria-describedby": of, click }, icon(picture));
  }

  /** @param {import("./store.js").Chat} chat */
  async #rename(chat) {
    const title = await askForText("Rename this chat", "Name", chat.title, "Rename");
    if (title) this.#chats.rename(chat.id, title);
  }

  /** @param {import("./store.js").Chat} chat */
  async #remove(chat) {
    const question = `“${chat.title}” will be gone from this browser.`;
    if (!(await confirm("Delete this chat?", question, "Delete"))) return;
    this.#chats.remove(chat.id);
    byId("new-chat").focus();
  }
}
