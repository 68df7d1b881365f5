// Starts the page: makes its parts and connects them. What the parts do is in their files:
//
//   chats.js       the chats, and asking for answers (store.js keeps them, api.js asks)
//   transcript.js  the open chat (turns.js: a message; markdown.js and code.js: its text)
//   composer.js    where questions are written
//   sidebar.js     the list of chats
//   server.js      the model or, of several, their menu: models.js
//   drawers.js     the panels at the right: settings_form.js, live.js

import { Chats } from "./chats.js";
import { Composer } from "./composer.js";
import { byId } from "./dom.js";
import { announce } from "./announcer.js";
import { Drawer } from "./drawers.js";
import { drawIcons } from "./icons.js";
import { LivePanel } from "./live.js";
import { followLoads } from "./models.js";
import { showModel } from "./server.js";
import { Settings } from "./settings.js";
import { fillSettings } from "./settings_form.js";
import { Sidebar } from "./sidebar.js";
import { readItem, writeItem } from "./storage.js";
import { connectTheme } from "./theme.js";
import { Transcript } from "./transcript.js";

// The chat that was open in this tab, for a reload.
const OPEN = "powerinfer.open";

drawIcons();
connectTheme(byId("theme"));

const needsKey = document.documentElement.dataset.needsKey === "true";
const defaults = JSON.parse(document.documentElement.dataset.defaults || "{}");
const settings = new Settings();
const chats = new Chats(settings);

const transcript = new Transcript(chats, {
  edit: (message) => composer.edit(message),
  regenerate: () => {
    chats.regenerate();
    announce("Writing another answer");
    composer.focus();
  },
  openSettings: () => settingsDrawer.toggle(true),
  startNew: () => sidebar.startNew(),
});
const composer = new Composer(chats, (message) => transcript.mark(message));
const sidebar = new Sidebar(chats, () => composer.focus());
const live = new LivePanel(settings, () => Drawer.closeOpen());
new Drawer("live", "show-live", (isOpen) => live.setOpen(isOpen));
const settingsDrawer = new Drawer("settings", "show-settings", () => {});
fillSettings(settings, {
  defaults,
  needsKey,
  keyChanged: () => void showModel(settings, needsKey),
  close: () => Drawer.closeOpen(),
});

followLoads(chats);
chats.addEventListener("show", () => writeItem(OPEN, chats.open.id, sessionStorage));
chats.addEventListener("full", () => {
  byId("server-state").textContent = "browser storage is full: delete chats";
  byId("server-state").hidden = false;
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    // A dialog closes itself. In a panel Escape means the panel; elsewhere first the answer.
    if (event.isComposing || byId("dialog").open) return;
    if (sidebar.close() || (Drawer.hasFocus() && Drawer.closeOpen())) return;
    if (!composer.stop() && !composer.cancelEdit()) Drawer.closeOpen();
  } else if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    sidebar.startNew();
  }
});

chats.show(readItem(OPEN, sessionStorage) ?? "");
void showModel(settings, needsKey);
// Not on a phone, where the keyboard would cover the page.
if (matchMedia("(hover: hover)").matches) composer.focus();
