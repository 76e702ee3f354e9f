// The page about the pipelines of a program: which part of it is shown, and what arrives for it.

import { clock, put, seconds } from "./format.js";
import { key, keyFromAddress, Live } from "./live.js";
import { watchStreams } from "./jetstream.js";
import { focusRow, headlineOf, remember, render, sorted } from "./overview.js";
import { Detail } from "./detail.js";
import { showKeyed, unlock } from "./orders.js";

const $ = (id) => document.getElementById(id);
let pipelines = null;
let detail = null;
let states = new Map();
let asked = false;

function isVisible() {
  return document.visibilityState === "visible";
}

function heard(news) {
  const first = pipelines === null;
  pipelines = sorted(news);
  document.body.classList.remove("stale");
  if (!$("gone").hidden) put($("said"), "The program answers again.");
  $("gone").hidden = true;
  asked = false;
  put($("pulse"), "Live");
  $("pulse").dataset.tone = "live";
  announce(pipelines, first);
  remember(pipelines);
  show();
}

/** Tell a screen reader of changed states, and of nothing else. */
function announce(news, first) {
  const said = news.filter((each) => !first && states.get(each.key) !== each.state).map((each) => `${each.name} is ${each.state}.`);
  states = new Map(news.map((each) => [each.key, each.state]));
  if (said.length) put($("said"), said.join(" "));
}

function show() {
  const headline = headlineOf(pipelines);
  const name = detail ? pipelines.find((each) => each.key === detail.key)?.name ?? detail.key : null;
  document.title = `${name ? `${name} · ` : ""}${headline.short} · Penstock`;
  const icon = headline.tone === "failed" ? "icon-alert.svg" : "icon.svg";
  if ($("icon").getAttribute("href") !== icon) $("icon").setAttribute("href", icon);
  if (!isVisible()) return;
  if (detail) detail.refresh();
  else render(pipelines);
}

async function lost({ since, next, refused }) {
  if (refused) {
    if (asked) return;
    asked = true;
    put($("pulse"), "Locked");
    $("pulse").dataset.tone = "";
    if (pipelines === null) put($("headline"), "This needs the key");
    put($("gone-what"), refused.message);
    put($("gone-next"), "");
    $("gone").hidden = false;
    const given = await unlock("From other machines, everything needs the key of the program.", key.get() ? refused.message : "");
    if (given) tryNow();
    return;
  }
  if (!document.body.classList.contains("stale")) put($("said"), "The program does not answer.");
  document.body.classList.add("stale");
  put($("pulse"), "Not connected");
  $("pulse").dataset.tone = "gone";
  const ago = (Date.now() - since) / 1000;
  put($("gone-what"), `The program has not answered since ${clock(since / 1000)}${ago > 10 ? `, for ${seconds(ago)}` : ""}.`);
  put($("gone-next"), `${pipelines ? "What you see is from then." : ""} The next try is in ${Math.max(1, Math.round(next / 1000))} s.`);
  $("gone").hidden = false;
  if (pipelines === null) put($("headline"), "The program does not answer");
}

const live = new Live(heard, lost);

function tryNow() {
  asked = false;
  live.tryNow();
}

function route() {
  const found = /^#\/pipelines\/(.+)$/.exec(location.hash);
  let name = null;
  try {
    name = found ? decodeURIComponent(found[1]) : null;
  } catch {
    name = found[1];
  }
  const before = detail?.key;
  if (name === before && detail) return;
  $("overview").hidden = name !== null;
  $("detail").hidden = name === null;
  detail = name === null ? null : new Detail(name, $("detail"));
  if (detail) {
    scrollTo(0, 0);
    detail.refresh(true);
    detail.heading.focus({ preventScroll: true });
  } else {
    $("detail").replaceChildren();
  }
  if (pipelines) show();
  if (!detail && before) focusRow(before);
}

function showTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = document.documentElement.dataset.theme || system;
  put($("theme"), now === "dark" ? "Light" : "Dark");
  $("theme").setAttribute("aria-label", now === "dark" ? "Show it light" : "Show it dark");
  return now;
}

$("theme").addEventListener("click", () => {
  const next = showTheme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("penstock-theme", next);
  showTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
$("gone-try").addEventListener("click", tryNow);
$("forget").addEventListener("click", () => {
  key.forget();
  showKeyed();
});
document.addEventListener("visibilitychange", () => pipelines && show());
addEventListener("hashchange", () => {
  keyFromAddress();
  showKeyed();
  route();
});

keyFromAddress();
showKeyed();
showTheme();
route();
live.run();
watchStreams(() => pipelines && show());
