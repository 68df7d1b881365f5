// The live panel: what the server computes now. Asks once a second, only while it is open and seen.

import { getJson } from "./api.js";
import { describe } from "./failures.js";
import { byId, make, makeSvg } from "./dom.js";
import { icon } from "./icons.js";
import { layerChart, layerTable, percent, summary } from "./layer_chart.js";

const EVERY = 1000;
const REMEMBERED = 60;

/** Asks for figures and shows them. */
export class LivePanel {
  #settings;
  #body = make("div", { class: "live-body" });
  #table = make("div", {});
  #details = make("details", { class: "numbers", hidden: true }, make("summary", {}, "As numbers"), this.#table);
  #isOpen = false;
  #timer = 0;
  /** @type {any} */
  #before = null;
  /** Tokens per second, the latest last. @type {number[]} */
  #rates = [];

  /**
   * @param {import("./settings.js").Settings} settings
   * @param {() => void} close
   */
  constructor(settings, close) {
    this.#settings = settings;
    const closing = { type: "button", class: "icon-button", "aria-label": "Close", click: close };
    byId("live").append(
      make(
        "div",
        { class: "drawer-head" },
        make("h2", {}, "Live"),
        make("button", closing, icon("close")),
      ),
      this.#body,
      this.#details,
    );
    document.addEventListener("visibilitychange", () => this.#start());
  }

  /** @param {boolean} isOpen */
  setOpen(isOpen) {
    this.#isOpen = isOpen;
    this.#before = null;
    this.#rates = [];
    this.#start();
  }

  #start() {
    clearTimeout(this.#timer);
    if (this.#isOpen && !document.hidden) void this.#ask();
  }

  async #ask() {
    try {
      const { model, apiKey } = this.#settings;
      const path = model ? `panel?model=${encodeURIComponent(model)}` : "panel";
      this.#show(await getJson(path, apiKey));
    } catch (error) {
      const { title, detail } = describe(error);
      this.#body.replaceChildren(make("p", { class: "note" }, `${title}. ${detail}`));
      this.#details.hidden = true;
      this.#before = null;
    }
    clearTimeout(this.#timer);
    if (this.#isOpen && !document.hidden) this.#timer = setTimeout(() => this.#ask(), EVERY);
  }

  /** @param {any} figures of /panel; null: the engine does not count it */
  #show(figures) {
    const rate = this.#rate(figures);
    this.#body.replaceChildren(
      make(
        "div",
        { class: "tiles" },
        tile("Tokens/s", rate === null ? "–" : rate.toFixed(1), sparkline(this.#rates)),
        tile("Running", shown(figures.running)),
        tile("Waiting", shown(figures.waiting)),
      ),
      ...memory(figures),
      ...drafts(figures),
      ...neurons(figures.layers),
    );
    this.#details.hidden = !figures.layers;
    if (figures.layers && this.#details.open) this.#table.replaceChildren(layerTable(figures.layers));
    this.#details.ontoggle = () =>
      figures.layers && this.#table.replaceChildren(layerTable(figures.layers));
  }

  /** @param {any} figures @returns {number | null} tokens per second since the last figures */
  #rate(figures) {
    const before = this.#before;
    this.#before = figures;
    if (before?.model !== figures.model) {
      this.#rates = [];
      return null;
    }
    if (figures.generated_tokens === null || figures.time <= before.time) return null;
    const tokens = figures.generated_tokens - before.generated_tokens;
    const rate = Math.max(0, tokens) / (figures.time - before.time);
    this.#rates = [...this.#rates, rate].slice(-REMEMBERED);
    return rate;
  }
}

/** @param {any} value @returns {string} */
function shown(value) {
  return value === null || value === undefined ? "–" : String(value);
}

/** @param {string} name @param {string} value @param {...Element} more */
function tile(name, value, ...more) {
  return make("div", { class: "tile" }, make("span", {}, name), make("strong", {}, value), ...more);
}

/** @param {number[]} rates */
function sparkline(rates) {
  const top = Math.max(...rates, 1);
  // The latest at the right.
  const first = REMEMBERED - rates.length;
  const points = rates.map((rate, at) => {
    return `${(100 * (first + at)) / (REMEMBERED - 1)},${30 - (28 * rate) / top}`;
  });
  return makeSvg(
    "svg",
    { viewBox: "0 0 100 31", class: "sparkline", preserveAspectRatio: "none", "aria-hidden": "true" },
    makeSvg("polyline", { points: points.join(" ") }),
  );
}

/** @param {any} figures @returns {HTMLElement[]} */
function memory(figures) {
  const { blocks, blocks_used, blocks_cached, prompt_tokens, cached_tokens } = figures;
  if (!blocks) return [];
  const used = blocks_used / blocks;
  const kept = (blocks_cached ?? 0) / blocks;
  const words = `${percent(used)} in use, ${percent(kept)} kept for prompts that begin alike`;
  const hits = prompt_tokens
    ? `${percent(cached_tokens / prompt_tokens)} of all prompt tokens were computed before.`
    : "";
  return [
    make("h3", {}, "Keys and values"),
    makeSvg(
      "svg",
      { viewBox: "0 0 100 6", class: "meter", preserveAspectRatio: "none", role: "img", "aria-label": words },
      makeSvg("rect", { width: 100, height: 6, class: "free" }),
      makeSvg("rect", { width: Math.min(100, 100 * (used + kept)), height: 6, class: "kept" }),
      makeSvg("rect", { width: Math.min(100, 100 * used), height: 6, class: "used" }),
    ),
    make("p", { class: "note" }, `${words}. ${hits}`),
    ...states(figures),
  ];
}

/** @param {any} figures @returns {HTMLElement[]} */
function states({ states, states_used, states_cached }) {
  if (!states) return [];
  const words = `States: ${states_used} in use, ${states_cached} kept for prompts that begin alike, room for ${states}.`;
  return [make("p", { class: "note" }, words)];
}

/** @param {any} figures @returns {HTMLElement[]} */
function drafts({ drafted_tokens, accepted_tokens, text_steps }) {
  if (!drafted_tokens || !text_steps) return [];
  const share = percent(accepted_tokens / drafted_tokens);
  const perStep = (1 + accepted_tokens / text_steps).toFixed(2);
  const words = `${share} of ${drafted_tokens} drafted tokens accepted, ${perStep} tokens per step.`;
  return [make("h3", {}, "Drafts"), make("p", { class: "note" }, words)];
}

/** @param {import("./layer_chart.js").LayerShares | null} layers @returns {HTMLElement[]} */
function neurons(layers) {
  const heading = make("h3", {}, "Neurons by layer");
  if (!layers) return [heading, make("p", { class: "note" }, "Not counted yet, or not by this engine.")];
  return [heading, make("p", { class: "note" }, summary(layers)), layerChart(layers)];
}
