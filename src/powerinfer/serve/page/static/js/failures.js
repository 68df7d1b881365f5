// What went wrong, in words that say what to do.

import { ApiError } from "./api.js";

/**
 * @typedef {object} Failure
 * @property {string} title
 * @property {string} detail
 * @property {"retry" | "settings" | "new"} remedy what the button offers
 */

/**
 * @param {unknown} error
 * @returns {Failure}
 */
export function describe(error) {
  if (!(error instanceof ApiError)) {
    return { title: "Something went wrong", detail: String(error), remedy: "retry" };
  }
  if (error.code === "context_length_exceeded") {
    return {
      title: "This chat is longer than the model can read",
      detail: `${error.message} Start a new chat, or change an earlier question.`,
      remedy: "new",
    };
  }
  if (error.status === 0) {
    return error.code
      ? { title: "The answer broke off", detail: error.message, remedy: "retry" }
      : { title: "The connection was lost", detail: error.message, remedy: "retry" };
  }
  return ofStatus(error);
}

/**
 * @param {ApiError} error
 * @returns {Failure}
 */
function ofStatus(error) {
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  switch (error.status) {
    case 401:
      return {
        title: "The server asks for an API key",
        detail: "Enter it in Settings, then try again.",
        remedy: "settings",
      };
    case 429:
      return {
        title: "The server is busy",
        detail: `As many requests wait as it takes.${wait}`,
        remedy: "retry",
      };
    case 503:
      return {
        title: "The server is not ready",
        detail: `${error.message}${wait}`,
        remedy: "retry",
      };
    default:
      return { title: "The server refused the request", detail: error.message, remedy: "retry" };
  }
}
