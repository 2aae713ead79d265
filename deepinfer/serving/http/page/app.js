// The page: what is shown, light or dark, and the state of the server. Its parts are modules of their own.

import { ask } from "./api.js";
import { chat } from "./chat.js";
import { live } from "./live.js";
import { plan } from "./plan.js";

const find = (id) => document.getElementById(id);
const KEPT = "The key stays in this tab and goes when it is closed.";
const wide = matchMedia("(min-width: 60rem)");

function show(view) {
  document.body.dataset.view = view;
  for (const button of document.querySelectorAll("[data-goto]")) {
    if (button.dataset.goto === view) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

function dress(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

async function lookAtHealth() {
  const body = await fetch("health", { cache: "no-store" }).then((response) => response.json(), () => null);
  const state = body?.status ?? "gone";
  const phase = state === "starting" || state === "restarting" ? `${body.phase} (${Math.round(body.seconds)} s)` : "";
  if (find("state").dataset.state !== state) document.dispatchEvent(new CustomEvent("state", { detail: state }));
  find("state").dataset.state = state;
  find("state-text").textContent = phase || { gone: "no answer" }[state] || state;
  find("state").title = body?.cause ?? "";
  setTimeout(lookAtHealth, state === "ready" ? 5000 : 1000);
}

async function nameModel() {
  const models = await ask("v1/models").then((response) => response.json(), () => null);
  if (models) {
    find("model").textContent = models.data[0].id;
    document.title = `${models.data[0].id} · deepinfer`;
  }
}

for (const button of document.querySelectorAll("[data-goto]")) button.addEventListener("click", () => show(button.dataset.goto));
wide.addEventListener("change", () => show(wide.matches && document.body.dataset.view === "chat" ? "live" : document.body.dataset.view));
if (wide.matches) show("live");
dress(localStorage.getItem("deepinfer-theme"));
find("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("color-scheme").trim() === "dark";
  dress(dark ? "light" : "dark");
  localStorage.setItem("deepinfer-theme", dark ? "light" : "dark");
});
for (const event of ["key-changed", "state"]) {
  document.addEventListener(event, nameModel);
  document.addEventListener(event, () => plan(find("plan")));
}
document.addEventListener("key-needed", ({ detail: sent }) => {
  const why = sent ? "This server does not know that API key." : "This server needs an API key.";
  find("key-note").textContent = `${why} ${KEPT}`;
  if (find("settings").dataset.needs) return; // it was opened for that, and may have been closed since
  find("settings").dataset.needs = "key";
  find("settings").open = true;
  if (document.activeElement === document.body || document.activeElement === find("text")) find("key").focus();
});
document.addEventListener("key-accepted", () => {
  if (!find("settings").dataset.needs) return;
  delete find("settings").dataset.needs;
  find("settings").open = false;
  find("key-note").textContent = KEPT;
  find("text").focus();
});
chat();
live(find("charts"), find("live-note"));
nameModel();
plan(find("plan"));
lookAtHealth();
