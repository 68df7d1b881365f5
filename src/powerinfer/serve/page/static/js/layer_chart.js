// A bar for each layer: the share of its neurons that fire for a token, and before it the share
// that all texts of a step need together.

import { make, makeSvg } from "./dom.js";

const WIDTH = 290;
const HEIGHT = 120;
// Beside and below the bars, for what the axes say.
const SIDE = 30;
const FOOT = 16;
const SCALES = [0.05, 0.1, 0.25, 0.5, 1];

/** @typedef {{active: number[], union: number[]}} LayerShares */

/**
 * @param {LayerShares} layers
 * @returns {HTMLElement} with the numbers as a table below
 */
export function layerChart(layers) {
  const top = SCALES.find((scale) => Math.max(...layers.union, ...layers.active) <= scale) ?? 1;
  const step = WIDTH / layers.active.length;
  const bars = layers.active.flatMap((active, at) => [
    bar("union", at * step, step, layers.union[at] / top, title(layers, at)),
    bar("active", at * step, step, active / top, title(layers, at)),
  ]);
  const picture = makeSvg(
    "svg",
    { viewBox: `0 -5 ${WIDTH + SIDE} ${HEIGHT + FOOT + 5}`, class: "layer-chart", role: "img", "aria-label": summary(layers) },
    ...[0.5, 1].map((part) => rule(part, top)),
    ...bars,
    label("layer 1", 0, "start"),
    label(String(layers.active.length), WIDTH, "end"),
  );
  return make(
    "figure",
    { class: "layers" },
    picture,
    make("figcaption", {}, key("active", "fire for a token"), key("union", "needed by the whole batch")),
  );
}

/**
 * @param {LayerShares} layers
 * @returns {string}
 */
export function summary({ active, union }) {
  return `On average ${percent(mean(active))} of a layer's neurons fire for a token, and a step for all texts needs ${percent(mean(union))}.`;
}

/**
 * @param {LayerShares} layers
 * @returns {HTMLElement} a table
 */
export function layerTable({ active, union }) {
  const head = ["Layer", "Fire", "Batch"].map((name) => make("th", { scope: "col" }, name));
  const rows = active.map((share, at) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, String(at + 1)),
      make("td", {}, percent(share)),
      make("td", {}, percent(union[at])),
    ),
  );
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

/**
 * @param {number} share
 * @returns {string}
 */
export function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

/** @param {number[]} values */
function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** @param {LayerShares} layers @param {number} at */
function title({ active, union }, at) {
  return `Layer ${at + 1}: ${percent(active[at])} fire, ${percent(union[at])} for the batch`;
}

/** @param {string} kind @param {number} x @param {number} step @param {number} part @param {string} text */
function bar(kind, x, step, part, text) {
  const height = Math.max(1, Math.min(1, part) * HEIGHT);
  const gap = Math.min(2, step / 5);
  const size = { x: x + gap / 2, y: HEIGHT - height, width: step - gap, height };
  return makeSvg("rect", { ...size, class: `bar ${kind}` }, makeSvg("title", {}, text));
}

/** @param {number} part @param {number} top */
function rule(part, top) {
  const y = HEIGHT * (1 - part) + 0.5;
  return makeSvg(
    "g",
    { class: "rule" },
    makeSvg("line", { x1: 0, x2: WIDTH, y1: y, y2: y }),
    makeSvg("text", { x: WIDTH + 4, y: y + 3.5 }, shownScale(part * top)),
  );
}

/** @param {number} share */
function shownScale(share) {
  return `${Number((100 * share).toFixed(1))} %`;
}

/** @param {string} text @param {number} x @param {string} anchor */
function label(text, x, anchor) {
  return makeSvg("text", { x, y: HEIGHT + FOOT - 4, "text-anchor": anchor, class: "axis" }, text);
}

/** @param {string} kind @param {string} text */
function key(kind, text) {
  return make("span", { class: `key ${kind}` }, text);
}
