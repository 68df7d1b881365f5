// The light and the dark theme: the system's at first, then what the user chose.

import { setIcon } from "./icons.js";
import { readItem, writeItem } from "./storage.js";

const KEY = "powerinfer.theme";

/**
 * Let a button switch the theme.
 *
 * @param {HTMLButtonElement} button
 */
export function connectTheme(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = readItem(KEY);
    const isDark = chosen ? chosen === "dark" : system.matches;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    button.title = isDark ? "Light theme" : "Dark theme";
    button.setAttribute("aria-description", isDark ? "dark now" : "light now");
    setIcon(button, isDark ? "sun" : "moon");
  };
  button.addEventListener("click", () => {
    writeItem(KEY, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    apply();
  });
  system.addEventListener("change", apply);
  // Another tab chose.
  addEventListener("storage", apply);
  apply();
}
