// The event stream of a response (text/event-stream), as the server writes it.

/**
 * The data of each event, until the stream ends.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<string>}
 */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      pending += value;
      // An event ends with an empty line. A piece may end anywhere, also between \r and \n.
      const events = pending.split(/\r\n\r\n|\n\n/);
      pending = events.pop() ?? "";
      for (const event of events) {
        const data = dataOf(event);
        if (data !== null) yield data;
      }
    }
  } finally {
    // Whoever stops reading closes the connection: the server then ends the answer.
    reader.cancel().catch(() => {});
  }
}

/**
 * @param {string} event
 * @returns {string | null} null for comments, which only keep the connection open
 */
function dataOf(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).trimStart()).join("\n") : null;
}
