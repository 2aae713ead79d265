// The chat box: what is said goes to /v1/chat/completions, and its stream comes back into the conversation.

import { Answer, question, toolResult } from "./answer.js";
import { apiKey, ask, events, keepKey } from "./api.js";
import { element } from "./elements.js";

const find = (id) => document.getElementById(id);
const KEPT = ["system", "temperature", "max-tokens", "thinking", "tools"];
const NEAR_END_PX = 80;
const START = "What you write goes to the model of this server and nowhere else.";

let messages = []; // of the conversation, as the API takes them
let running = null; // AbortController of the answer that streams

export function chat() {
  for (const id of KEPT) {
    find(id).value = sessionStorage.getItem(`deepinfer-${id}`) ?? find(id).value;
    find(id).addEventListener("change", () => sessionStorage.setItem(`deepinfer-${id}`, find(id).value));
  }
  find("key").value = apiKey();
  find("key").addEventListener("change", () => keepKey(find("key").value.trim()));
  find("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  find("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  find("text").addEventListener("input", grow);
  find("stop").addEventListener("click", () => running?.abort());
  find("clear").addEventListener("click", clear);
  clear();
}

function clear() {
  running?.abort();
  messages = [];
  find("messages").replaceChildren(element("p", { class: "note empty" }, START));
}

function grow() {
  const box = find("text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function send() {
  const text = find("text").value;
  const awaited = find("messages").querySelector(".results textarea");
  if (running || !text.trim()) return;
  if (awaited) { // the model cannot go on without them
    awaited.focus();
    find("announce").textContent = "First send the results of the model's calls.";
    return;
  }
  find("text").value = "";
  grow();
  say({ role: "user", content: text }, question(text));
  answer();
}

function say(message, shown) {
  find("messages").querySelector(".empty")?.remove();
  find("messages").querySelector(".results")?.remove();
  messages.push(message);
  append(shown);
}

function append(shown) {
  find("messages").append(shown);
  find("messages").scrollTop = find("messages").scrollHeight;
}

/** Draw, and stay at the end of the conversation for whoever reads there. */
function following(draw) {
  const list = find("messages");
  const follows = list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END_PX;
  draw();
  if (follows) list.scrollTop = list.scrollHeight;
}

/** The body of a request. Throws a sentence where the settings cannot be read. */
function body() {
  const system = find("system").value.trim();
  const asked = {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
  };
  if (find("temperature").value) asked.temperature = Number(find("temperature").value);
  if (find("max-tokens").value) asked.max_tokens = Number(find("max-tokens").value);
  if (find("thinking").value) asked.thinking = { type: find("thinking").value };
  if (find("tools").value.trim()) {
    try {
      asked.tools = JSON.parse(find("tools").value);
    } catch (error) {
      throw new Error(`The tools in the settings are no JSON: ${error.message}`);
    }
  }
  return asked;
}

async function answer() {
  const shown = new Answer(following);
  const mine = new AbortController();
  running = mine;
  busy(true);
  append(shown.root);
  let failure = "";
  try {
    const headers = { "content-type": "application/json" };
    const response = await ask("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body()), signal: mine.signal });
    for await (const chunk of events(response)) shown.add(chunk);
    if (!shown.reason) failure = "The stream ended before the answer did.";
  } catch (error) {
    if (error.name === "AbortError") shown.reason = "stopped";
    else failure = error.message;
  }
  shown.end(failure);
  if (running !== mine) return; // another chat has begun meanwhile
  running = null;
  busy(false);
  finish(shown, failure);
}

/** Keep what was answered; what failed can be asked again. */
function finish(shown, failure) {
  find("announce").textContent = failure || "The answer is complete.";
  const list = find("messages");
  if (failure) {
    const again = element("button", { type: "button", class: "quiet" }, "Try again");
    again.addEventListener("click", () => {
      if (running) return;
      shown.root.remove();
      answer();
    });
    shown.root.append(again);
  } else {
    if (shown.reason === "stopped") delete shown.message.tool_calls;
    messages.push(shown.message);
    if (shown.reason === "tool_calls") append(results(shown.message.tool_calls));
  }
  list.scrollTop = list.scrollHeight;
}

/** A form for what the called tools said. */
function results(calls) {
  const fields = calls.map((call) => element("textarea", { rows: 2, required: true, spellcheck: "false" }));
  const labels = calls.map((call, index) => element("label", {}, `Result of ${call.function.name}`, fields[index]));
  const form = element("form", { class: "results" }, ...labels, element("button", { type: "submit" }, "Send results"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) return;
    calls.forEach((call, index) => {
      const content = fields[index].value;
      say({ role: "tool", tool_call_id: call.id, content }, toolResult(call.function.name, content));
    });
    answer();
  });
  return form;
}

function busy(is) {
  find("send").hidden = is;
  find("stop").hidden = !is;
  find("announce").textContent = is ? "The model answers." : "";
  if (!is && document.activeElement === document.body) find("text").focus();
}
