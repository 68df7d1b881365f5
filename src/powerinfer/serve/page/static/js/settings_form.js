// The form of the settings. What is typed counts at once; there is nothing to save.

import { byId, make } from "./dom.js";
import { icon } from "./icons.js";
import { NUMBER_FIELDS } from "./settings.js";

/**
 * Fill the panel.
 *
 * @param {import("./settings.js").Settings} settings
 * @param {object} page
 * @param {Record<string, number>} page.defaults of the server
 * @param {boolean} page.needsKey
 * @param {() => void} page.keyChanged
 * @param {() => void} page.close
 */
export function fillSettings(settings, { defaults, needsKey, keyChanged, close }) {
  const refill = () => fillSettings(settings, { defaults, needsKey, keyChanged, close });
  const reset = make("button", { type: "button", class: "wide-button" }, "Back to the defaults");
  reset.addEventListener("click", () => {
    settings.reset();
    refill();
    byId("settings").querySelector("textarea")?.focus();
  });
  byId("settings").replaceChildren(
    make(
      "div",
      { class: "drawer-head" },
      make("h2", { id: "settings-heading" }, "Settings"),
      make(
        "button",
        { type: "button", class: "icon-button", "aria-label": "Close", click: close },
        icon("close"),
      ),
    ),
    ...(needsKey ? [keyField(settings, keyChanged)] : []),
    promptField(settings),
    make(
      "fieldset",
      {},
      make("legend", {}, "How answers are drawn"),
      ...NUMBER_FIELDS.map((field) => numberField(field, settings, defaults[field.name])),
    ),
    reset,
  );
}

/**
 * @param {import("./settings.js").Settings} settings
 * @param {() => void} changed
 * @returns {HTMLElement}
 */
function keyField(settings, changed) {
  const input = make("input", {
    type: "password",
    value: settings.apiKey,
    autocomplete: "off",
    "aria-describedby": "api-key-hint",
  });
  input.addEventListener("change", () => {
    settings.apiKey = input.value.trim();
    changed();
  });
  const hint = make("p", { id: "api-key-hint", class: "hint" }, "Kept until this tab is closed.");
  return make("div", { class: "field" }, make("label", {}, "API key", input), hint);
}

/**
 * @param {import("./settings.js").Settings} settings
 * @returns {HTMLElement}
 */
function promptField(settings) {
  const area = make("textarea", { rows: "5", placeholder: "None" });
  area.value = settings.systemPrompt;
  area.addEventListener("input", () => settings.set("system_prompt", area.value));
  return make("div", { class: "field" }, make("label", {}, "System prompt", area));
}

/**
 * @param {import("./settings.js").NumberField} field
 * @param {import("./settings.js").Settings} settings
 * @param {number | undefined} standard
 * @returns {HTMLElement}
 */
function numberField({ name, label, hint, min, max, step }, settings, standard) {
  const id = `setting-${name}`;
  const input = make("input", {
    id,
    type: "number",
    inputmode: "decimal",
    min: String(min),
    max: max === undefined ? false : String(max),
    step: name === "seed" || step === 1 ? "1" : "any",
    value: String(settings.get(name) ?? ""),
    placeholder: standard === undefined ? "–" : String(standard),
    autocomplete: "off",
    "aria-describedby": `${id}-hint`,
  });
  const note = make("span", { id: `${id}-hint`, class: "hint" }, hint);
  input.addEventListener("input", () => {
    const isValid = input.checkValidity();
    input.setAttribute("aria-invalid", String(!isValid));
    note.textContent = isValid ? hint : wanted(min, max, step);
    settings.set(name, isValid && input.value !== "" ? Number(input.value) : undefined);
  });
  return make("div", { class: "number" }, make("label", { for: id }, label), input, note);
}

/**
 * @param {number} min
 * @param {number | undefined} max
 * @param {number} step
 * @returns {string}
 */
function wanted(min, max, step) {
  const kind = step === 1 ? "a whole number" : "a number";
  return max === undefined ? `${kind}, ${min} or more` : `${kind} from ${min} to ${max}`;
}
