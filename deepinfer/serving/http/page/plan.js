// /v1/plan as a page that one reads: what was chosen, where memory goes, what was decided and why.

import { ask } from "./api.js";
import { bytes, element, short } from "./elements.js";

export async function plan(root) {
  try {
    const text = await (await ask("v1/plan")).text();
    root.replaceChildren(...parts(JSON.parse(text), text));
  } catch (error) {
    const told = error.status === 401 ? "This server needs an API key: give it in the settings of the chat." : error.message;
    root.replaceChildren(element("p", { class: "note" }, told));
  }
}

function parts(found, text) {
  return [
    part("Served", served(found)),
    part("Chosen", chips(found.choices ?? {})),
    ...(found.memory ?? []).map((each) => part(`Memory of rank ${each.ranks}`, memory(each))),
    part("Estimates", rows((found.cost?.headline ?? []).map((each) => [words(each.name), `${short(each.value)} ${each.unit} (${each.label})`]))),
    part("Decided", decisions(found.decisions ?? [])),
    part("Operations", rows(operations(found.ops ?? []))),
    part("Notes", list([...(found.warnings ?? []), ...(found.notes ?? [])])),
    part("Digests", rows([["ranks", found.rank_digest], ["numerics", found.numerics_digest]])),
    part("As JSON", element("pre", { tabindex: 0 }, JSON.stringify(JSON.parse(text), null, 2)), false),
  ].filter((each) => each != null);
}

/** Options of the configuration's groups; those that chose nothing come last. */
function chips(choices) {
  const told = Object.entries(choices).map(([group, option]) => element("code", { class: option === "none" ? "chip none" : "chip" }, `${group}=${option}`));
  told.sort((one, other) => one.classList.contains("none") - other.classList.contains("none"));
  return told.length ? element("div", { class: "chips" }, ...told) : null;
}

function served(found) {
  const { model = {}, hardware = {}, layout = {}, capacity = {}, cache = {}, numerics = {}, drafting, scheduler = {} } = found;
  return rows([
    ["model", `${model.name}, ${bytes(model.checkpoint_bytes ?? 0)} in ${short(model.num_tensors)} tensors`],
    ["from", model.location],
    ["hardware", `${layout.num_ranks} × ${hardware.name}`],
    ...(layout.roles ?? []).map((role) => [`role ${role.name}`, `${role.replicas} × (attention dp ${role.attention_dp} × context ${role.context}), experts over ${role.expert}`]),
    ["numerics", `${numerics.numerics}, ${numerics.dtype}${numerics.reproducible ? ", reproducible" : ""}`],
    ["longest", `${short(model.max_model_len)} tokens`],
    ["cache", `${short(capacity.all_tokens)} tokens in blocks of ${cache.block_tokens}; ${short(capacity.all_sequences)} sequences`],
    ["drafts", drafting ? `${drafting.kind}, depth ${drafting.depth}, ${numerics.verify} verification` : "none"],
    ["scheduler", `${scheduler.kind}, ${short(scheduler.max_num_batched_tokens)} tokens a step, async depth ${scheduler.async_depth}`],
    ["deepinfer", found.deepinfer],
  ]);
}

function memory(each) {
  const used = each.items.filter((item) => item.num_bytes > 0 && item.place === "device");
  const most = Math.max(1, ...used.map((item) => item.num_bytes));
  const lines = used.map((item) => {
    const fill = element("span", { class: "fill" });
    fill.style.width = `${(item.num_bytes / most) * 100}%`;
    return element("div", { class: "bar memory", title: item.note }, element("span", {}, words(item.name)), element("span", { class: "track" }, fill), element("span", {}, bytes(item.num_bytes)));
  });
  return element("div", {}, element("div", { class: "bars" }, ...lines), element("p", { class: "note" }, `${bytes(each.device_bytes)} used, ${bytes(each.headroom_bytes)} left`));
}

function decisions(found) {
  const lines = found.map((each) => element("li", {}, element("code", {}, `${each.key}=${each.value}`), ` ${each.rule}`, each.runner_up ? element("span", { class: "note" }, ` Second: ${each.runner_up}.`) : null));
  return lines.length ? element("ul", { class: "decisions" }, ...lines) : null;
}

function operations(ops) {
  const by = new Map();
  for (const each of ops) by.set(each.backend, [...(by.get(each.backend) ?? []), each.op]);
  return [...by].map(([backend, names]) => [backend, names.join(", ")]);
}

function part(title, body, open = true) {
  return body == null ? null : element("details", { class: "part", open }, element("summary", {}, title), body);
}

function rows(pairs) {
  const told = pairs.filter(([, value]) => value != null && value !== "");
  if (!told.length) return null;
  return element("dl", {}, ...told.flatMap(([name, value]) => [element("dt", {}, words(name)), element("dd", {}, String(value))]));
}

function list(lines) {
  return lines.length ? element("ul", {}, ...lines.map((line) => element("li", {}, typeof line === "string" ? line : JSON.stringify(line)))) : null;
}

function words(name) {
  return name.replaceAll("_", " ");
}
