// One message of the conversation on the page, and how an answer grows in it.
//
// A rate counts from the first token where that token could be seen. A call is held back until it is whole, and a stream that
// came at once shows no token by itself: then the rate is that of the whole request, and says so.

import { element, short } from "./elements.js";

const APART_MS = 5; // what comes within this came together

export function question(text) {
  return element("article", { class: "message user" }, element("div", { class: "who" }, "You"), element("div", { class: "text" }, text));
}

export function toolResult(name, text) {
  return element("article", { class: "message tool" }, element("div", { class: "who" }, `Result of ${name}`), element("div", { class: "text mono" }, text));
}

/** An answer while it streams. `message` is what a later request sends back; `onDraw(draw)` calls `draw` to show what came. */
export class Answer {
  constructor(onDraw = (draw) => draw()) {
    this.onDraw = onDraw;
    this.pending = []; // text that is not in the page yet, by place
    this.frame = null;
    this.message = { role: "assistant", content: "" };
    this.usage = null;
    this.reason = null;
    this.firstMs = this.lastMs = null;
    this.arrivals = 0; // apart in time
    this.held = false; // whether what came first is a whole call
    this.begunMs = performance.now();
    this.thought = element("div", { class: "text" });
    this.thinkingTitle = element("summary", {}, "Thinking…");
    this.thinking = element("details", { class: "thinking", open: true, hidden: true }, this.thinkingTitle, this.thought);
    this.text = element("div", { class: "text" });
    this.calls = element("div", { class: "calls" });
    this.foot = element("div", { class: "foot note" });
    this.root = element("article", { class: "message assistant busy" }, element("div", { class: "who" }, "Model"), this.thinking, this.text, this.calls, this.foot);
    this.cards = [];
  }

  add(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    this.usage = chunk.usage ?? this.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { reasoning_content: thought, content, tool_calls: calls } = choice.delta ?? {};
    if (thought || content || calls) this.arrived(!thought && !content);
    if (thought) {
      this.message.reasoning_content = (this.message.reasoning_content ?? "") + thought;
      this.thinking.hidden = false;
      this.write(this.thought, thought);
    }
    if (content) {
      this.endThinking();
      this.message.content += content;
      this.write(this.text, content);
    }
    for (const call of calls ?? []) this.addCall(call);
    this.reason = choice.finish_reason ?? this.reason;
  }

  arrived(held) {
    const nowMs = performance.now() - this.begunMs;
    if (this.firstMs == null) this.held = held;
    if (this.lastMs == null || nowMs - this.lastMs > APART_MS) this.arrivals += 1;
    this.firstMs ??= nowMs;
    this.lastMs = nowMs;
  }

  /** Text goes into the page once a frame, however many tokens have come. */
  write(place, text) {
    const before = this.pending.at(-1);
    if (before?.place === place) before.text += text;
    else this.pending.push({ place, text });
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.onDraw(() => {
      for (const { place, text } of this.pending.splice(0)) {
        if (place.lastChild) place.lastChild.appendData(text);
        else place.append(text);
      }
    });
    this.frame = null;
  }

  addCall(part) {
    this.endThinking();
    this.draw();
    this.message.tool_calls ??= [];
    const { index } = part;
    if (!this.message.tool_calls[index]) {
      this.message.tool_calls[index] = { id: part.id, type: "function", function: { name: "", arguments: "" } };
      const card = { name: element("code", {}), given: element("pre", {}) };
      this.calls.append(element("div", { class: "call" }, element("div", { class: "who" }, "Calls ", card.name), card.given));
      this.cards[index] = card;
    }
    const told = this.message.tool_calls[index].function;
    told.name += part.function?.name ?? "";
    told.arguments += part.function?.arguments ?? "";
    this.cards[index].name.textContent = told.name;
    this.cards[index].given.textContent = told.arguments;
  }

  endThinking() {
    if (this.thinking.hidden || this.thoughtMs != null) return;
    this.thoughtMs = performance.now() - this.begunMs;
    this.thinkingTitle.textContent = `Thought for ${(this.thoughtMs / 1000).toFixed(1)} s`;
    this.thinking.open = false;
  }

  /** `error`: a sentence, "" where all went well. */
  end(error = "") {
    this.root.classList.remove("busy");
    this.draw();
    this.endThinking();
    for (const card of this.cards) card.given.textContent = pretty(card.given.textContent);
    this.foot.textContent = this.told().join(" · ");
    if (error) this.root.append(element("p", { class: "error", role: "alert" }, error));
  }

  told() {
    const seconds = (performance.now() - this.begunMs) / 1000;
    const out = [];
    if (this.usage) {
      const { completion_tokens: made, prompt_tokens: asked, prompt_tokens_details: details } = this.usage;
      const decodeS = seconds - (this.firstMs ?? 0) / 1000;
      const fromFirst = this.arrivals > 1 && !this.held;
      out.push(`${short(made)} tokens`);
      if (made > 1) out.push(fromFirst ? `${short((made - 1) / decodeS)} a second` : `${short(made / seconds)} a second in all`);
      out.push(`prompt of ${short(asked)}${details?.cached_tokens ? `, ${short(details.cached_tokens)} of them cached` : ""}`);
    }
    if (this.firstMs != null && !this.held) out.push(`first after ${short(Math.round(this.firstMs))} ms`);
    const why = { length: "cut at max. tokens", tool_calls: "waits for the results of its calls", stopped: "stopped" }[this.reason];
    return why ? [...out, why] : out;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
