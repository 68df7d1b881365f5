// Icons as outlines in a square of 24, in the colour of the text around them.

import { makeSvg } from "./dom.js";

/** @type {Record<string, string>} */
const OUTLINES = {
  alert: "M12 8v5M12 16.500v.01M12 3a9 9 0 1 1 0 18 9 9 0 0 1 0-18z",
  check: "M5 12.500l4.500 4.500L19 7.500",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10a1 1 0 0 1 1 1v10a1 1 0 0 1-1 1H9a1 1 0 0 1-1-1V10a1 1 0 0 1 1-1zM5 15H4a1 1 0 0 1-1-1V4a1 1 0 0 1 1-1h10a1 1 0 0 1 1 1v1",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20h4L19 9a2.800 2.800 0 0 0-4-4L4 16zM13.500 6.500l4 4",
  menu: "M4 7h16M4 12h16M4 17h16",
  moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4 8.500 8.500 0 1 0 20 14.500z",
  plus: "M12 5v14M5 12h14",
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  redo: "M20 11a8 8 0 1 0-2.300 5.700M20 4v7h-7",
  rename: "M4 20h16M6 15l9-9 3 3-9 9H6z",
  send: "M12 19V5M6 11l6-6 6 6",
  sliders: "M4 7h10M18 7h2M4 17h2M10 17h10M14 7a2 2 0 1 0 4 0 2 2 0 0 0-4 0zM6 17a2 2 0 1 0 4 0 2 2 0 0 0-4 0z",
  spark: "M13 3L5 14h6l-1 7 9-11.500h-6.500z",
  stop: "M8 7h8a1 1 0 0 1 1 1v8a1 1 0 0 1-1 1H8a1 1 0 0 1-1-1V8a1 1 0 0 1 1-1z",
  sun: "M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM12 2v2M12 20v2M4 12H2M22 12h-2M5 5l1.500 1.500M17.500 17.500L19 19M5 19l1.500-1.500M17.500 6.500L19 5",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
};

/**
 * A picture that screen readers pass over: what it stands on has a name.
 *
 * @param {string} name
 * @returns {SVGElement}
 */
export function icon(name) {
  const filled = name === "stop" || name === "spark" ? "icon filled" : "icon";
  return makeSvg(
    "svg",
    { viewBox: "0 0 24 24", class: filled, "aria-hidden": "true" },
    makeSvg("path", { d: OUTLINES[name] }),
  );
}

/**
 * Let an element show an icon and nothing else.
 *
 * @param {Element} element
 * @param {string} name
 */
export function setIcon(element, name) {
  element.replaceChildren(icon(name));
}

/** Draw the icons that index.html names in `data-icon`. */
export function drawIcons() {
  for (const element of document.querySelectorAll("[data-icon]")) {
    setIcon(element, /** @type {HTMLElement} */ (element).dataset.icon ?? "");
  }
}
