// The charts: one sample a second from /v1/stats.

import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { element, short } from "./elements.js";

const PLACES = 120;
const PERIOD_MS = 1000;
const percent = (value) => (value == null ? "–" : `${short(Math.round(value * 1000) / 10)} %`);
const ms = (value) => (value == null ? "–" : value >= 1000 ? `${(value / 1000).toPrecision(3)} s` : `${short(value)} ms`);
const pair = (name) => [
  { name: "median", of: (sample) => sample[name]?.[0] ?? null },
  { name: "p95", of: (sample) => sample[name]?.[1] ?? null },
];

const CHARTS = [
  { title: "Answer tokens a second", show: short, lines: [{ of: (sample) => sample.answer_rate }] },
  { title: "Prompt tokens a second", show: short, lines: [{ of: (sample) => sample.prompt_rate }] },
  { title: "Answers", show: short, lines: [{ name: "running", of: (sample) => sample.running }, { name: "waiting", of: (sample) => sample.waiting }] },
  { title: "Cache in use", show: percent, top: 1, lines: [{ of: (sample) => sample.cache_usage }] },
  { title: "First token", show: ms, lines: pair("first_token_ms") },
  { title: "Between tokens", show: ms, lines: pair("between_tokens_ms") },
  { title: "Prompt found in cache", needs: "prefix_cache", show: percent, top: 1, lines: [{ of: (sample) => sample.hit_rate }] },
  { title: "Tokens a draft round", needs: "speculation", show: short, lines: [{ of: (sample) => sample.accepted_length }] },
];

/** Draw into `root` from now on. */
export function live(root, note) {
  const charts = CHARTS.map((spec) => ({ needs: spec.needs, chart: new Chart(spec, PLACES) }));
  for (const { needs, chart } of charts) chart.root.hidden = needs != null; // until it is known
  const depths = element("div", { class: "bars" });
  const accepted = element("figure", { class: "tile", hidden: true }, element("figcaption", {}, "Drafts accepted, by position"), depths);
  root.append(...charts.map(({ chart }) => chart.root), accepted);
  let samples = [];

  async function look() {
    const last = samples.at(-1)?.number ?? 0;
    const stats = await (await ask(`v1/stats?since=${last}`)).json();
    if (stats.samples[0]?.number <= last) samples = [];
    samples = [...samples, ...stats.samples].slice(-PLACES);
    for (const { needs, chart } of charts) {
      chart.root.hidden = needs != null && !stats[needs];
      chart.draw(samples);
    }
    accepted.hidden = !stats.speculation;
    depths.replaceChildren(...stats.accepted_share_by_position.map((share, index) => bar(index, share)));
    note.textContent = `${short(stats.generation_tokens)} answer tokens and ${short(stats.prompt_tokens)} prompt tokens since this server started; the charts show the last two minutes`;
  }

  async function keepLooking() {
    let shut = false; // nobody is let in without a key: asking again would only fill a log
    if (!document.hidden) {
      await look().catch((error) => {
        note.textContent = error.message;
        shut = error.status === 401;
        if (shut) note.textContent = "This server needs an API key: give it in the settings of the chat.";
      });
    }
    if (shut) document.addEventListener("key-changed", keepLooking, { once: true });
    else setTimeout(keepLooking, PERIOD_MS);
  }
  keepLooking();
}

function bar(index, share) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${Math.round((share ?? 0) * 100)}%`;
  return element("div", { class: "bar" }, element("span", {}, String(index + 1)), element("span", { class: "track" }, fill), element("span", {}, percent(share)));
}
