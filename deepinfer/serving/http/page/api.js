// How this page asks its server: with the key of this tab, and errors as sentences.

const KEY = "deepinfer-key";

export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  document.dispatchEvent(new Event("key-changed"));
}

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** A response that is fine; anything else is an ApiError with the server's own sentence. */
export async function ask(path, options = {}) {
  const key = apiKey();
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer.", 0);
  }
  if (response.ok) {
    if (key) document.dispatchEvent(new Event("key-accepted"));
    return response;
  }
  const message = await response.json().then((body) => body.error?.message, () => null);
  if (response.status === 401 && key === apiKey()) document.dispatchEvent(new CustomEvent("key-needed", { detail: key }));
  throw new ApiError(message ?? `The server said ${response.status}.`, response.status);
}

/** The data of a stream of server-sent events, an object each, until "[DONE]" or the stream's end. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
