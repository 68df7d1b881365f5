// Sets the theme before the first paint: a module would run after it, and the page would flash.
// `theme.js` does the rest.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("powerinfer.theme");
  } catch {
    // Storage is switched off: the system's theme it is.
  }
  const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
})();
