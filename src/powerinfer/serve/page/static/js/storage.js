// The browser's storage, which may be full, switched off or written by something else.

/**
 * A text that was stored, or null.
 *
 * @param {string} key
 * @param {Storage} [storage]
 * @returns {string | null}
 */
export function readItem(key, storage = localStorage) {
  try {
    return storage.getItem(key);
  } catch {
    return null;
  }
}

/**
 * A value that was stored as JSON, or null where there is none that can be read.
 *
 * @param {string} key
 * @param {Storage} [storage]
 * @returns {any}
 */
export function readJson(key, storage = localStorage) {
  try {
    return JSON.parse(readItem(key, storage) ?? "null");
  } catch {
    return null;
  }
}

/**
 * Store a text; null removes it.
 *
 * @param {string} key
 * @param {string | null} value
 * @param {Storage} [storage]
 * @returns {boolean} whether it is stored: false where the storage is full or switched off
 */
export function writeItem(key, value, storage = localStorage) {
  try {
    if (value === null) storage.removeItem(key);
    else storage.setItem(key, value);
    return true;
  } catch {
    return false;
  }
}
