// All pipelines: a headline that answers whether somebody is needed, and a row for each.

import { attribute, compact, el, health, isGrowing, number, plural, put, rate, seconds, UNKNOWN } from "./format.js";
import { headlineOfStreams } from "./jetstream.js";
import { get, now, pathOf } from "./live.js";
import { Sparkline } from "./charts.js";

const HISTORIES = 60; // so many rows have their last hour fetched
const rows = new Map();
const histories = new Map();
const asked = new Set();
const $ = (id) => document.getElementById(id);
const LABELS = ["State", "Rows/s", "Unread rows", "Behind", "Last hour", "Batch", "Restarts"];
const URGENT = { failed: 0, waiting: 1, behind: 2, running: 3, off: 4 };

/** In the order of the program, but what is behind comes before what is not. */
export function sorted(pipelines) {
  return [...pipelines].sort((one, other) => URGENT[health(one)] - URGENT[health(other)]);
}

export function reasonOf(pipeline) {
  const how = health(pipeline);
  const last = pipeline.at == null ? "" : ` Its last batch was ${seconds(Math.max(0, now() - pipeline.at))} ago.`;
  if (how === "failed") return `has failed.${last}`;
  if (how === "waiting") {
    return pipeline.restarts_in == null ? `is ${pipeline.state}.${last}` : `failed, and starts again in ${seconds(pipeline.restarts_in)}.${last}`;
  }
  if (how === "behind") {
    const grows = isGrowing(histories.get(pipeline.key) || []);
    return `is ${seconds(pipeline.lag_seconds)} behind${grows ? ", and falls further behind" : ""}.`;
  }
  return `is ${pipeline.state}.`;
}

/** Does it run, is it behind, what broke: in one sentence. */
export function headlineOf(pipelines) {
  const count = (...kinds) => pipelines.filter((each) => kinds.includes(health(each))).length;
  const all = pipelines.length;
  const ill = count("failed", "waiting");
  const late = count("behind");
  const off = count("off");
  const of = all === 1 ? "The pipeline" : null;
  if (!all && headlineOfStreams()) return headlineOfStreams();
  if (!all) return { tone: "off", text: "No pipeline runs here yet", short: "none" };
  if (ill) return { tone: "failed", text: of ? `${of} needs you` : `${ill} of ${plural(all, "pipeline", "pipelines")} ${ill === 1 ? "needs" : "need"} you`, short: `${ill} need${ill === 1 ? "s" : ""} you` };
  if (late) return { tone: "behind", text: of ? `${of} is behind` : `${late} of ${all} pipelines ${late === 1 ? "is" : "are"} behind`, short: `${late} behind` };
  if (off === all) return { tone: "off", text: of ? `${of} does not run` : `None of ${all} pipelines runs`, short: "none runs" };
  if (off) return { tone: "running", text: `${all - off} of ${all} pipelines run`, short: `${all - off} of ${all} run` };
  return { tone: "running", text: of ? `${of} runs` : `All ${all} pipelines run`, short: "all run" };
}

export function render(pipelines) {
  const headline = headlineOf(pipelines);
  put($("headline"), headline.text);
  attribute($("headline"), "data-tone", headline.tone);
  renderReasons(pipelines.filter((each) => URGENT[health(each)] < URGENT.running));
  const lag = pipelines.reduce((sum, each) => sum + (each.lag || 0), 0);
  const speed = pipelines.reduce((sum, each) => sum + each.rate, 0);
  const off = pipelines.filter((each) => health(each) === "off").length;
  put($("totals"), pipelines.length ? `${rate(speed)} rows a second, ${number(lag)} rows unread${off ? `, ${off} stopped or done` : ""}.` : headlineOfStreams() ? "" : "Queries show up here when they start.");
  $("pipelines").hidden = !pipelines.length;
  renderRows(pipelines);
}

function renderReasons(wrong) {
  const list = $("reasons");
  const shown = wrong.slice(0, 5);
  while (list.children.length > shown.length) list.lastChild.remove();
  shown.forEach((each, index) => {
    const item = list.children[index] || list.appendChild(el("li", {}, el("a"), " ", el("span")));
    const [link, text] = item.children;
    put(link, each.name);
    attribute(link, "href", addressOf(each.key));
    put(text, index === 4 && wrong.length > 5 ? `${reasonOf(each)} And ${wrong.length - 5} others.` : reasonOf(each));
    attribute(item, "class", health(each));
  });
}

export function addressOf(key) {
  return `#/pipelines/${encodeURIComponent(key)}`;
}

function renderRows(pipelines) {
  const body = $("pipelines").tBodies[0];
  const focused = document.activeElement;
  const keys = new Set(pipelines.map((each) => each.key));
  for (const [key, row] of rows) {
    if (keys.has(key)) continue;
    row.node.remove();
    rows.delete(key);
  }
  pipelines.forEach((each, index) => {
    if (!rows.has(each.key)) rows.set(each.key, newRow(each.key));
    const row = rows.get(each.key);
    if (body.children[index] !== row.node) body.insertBefore(row.node, body.children[index] || null);
    row.update(each);
  });
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

function newRow(key) {
  const link = el("a", { href: addressOf(key) });
  const guarantee = el("small");
  const error = el("p.error");
  const cells = LABELS.map((label, index) => el(index === 0 || index === 4 ? "td" : "td.num", { "data-label": label, role: "cell" }));
  const [state, speed, lag, behind, last, batch, restarts] = cells;
  const dot = el("span.dot", { "aria-hidden": "true" });
  const word = el("span");
  const due = el("small");
  state.append(dot, word, due);
  const spark = new Sparkline();
  last.append(spark.node);
  const node = el("tr", { "data-key": key, role: "row" }, el("th", { scope: "row", role: "rowheader" }, link, guarantee, error), ...cells);
  node.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !getSelection().toString()) location.hash = addressOf(key);
  });
  let drawn = 0;
  return {
    node,
    link,
    update(each) {
      put(link, each.name);
      put(guarantee, each.guarantee.split(":")[0]);
      attribute(guarantee, "title", each.guarantee || null);
      put(error, each.error);
      error.hidden = !each.error;
      attribute(node, "class", health(each));
      put(word, each.state);
      put(due, each.restarts_in == null ? "" : `in ${seconds(each.restarts_in)}`);
      put(speed, rate(each.rate));
      put(lag, each.lag == null ? UNKNOWN : each.lag < 10_000_000 ? number(each.lag) : compact(each.lag));
      const old = health(each) === "running" || health(each) === "behind" ? null : "When it ran last.";
      attribute(lag, "title", each.lag == null ? "The source does not tell." : old);
      attribute(behind, "title", each.lag_seconds == null ? "The source does not tell." : old);
      put(behind, seconds(each.lag_seconds));
      put(batch, number(each.batch));
      put(restarts, number(each.restarts));
      if (Date.now() - drawn > 4900 || !drawn) {
        const points = histories.get(key) || [];
        spark.update(points.map((point) => [point[0], point[2]]), health(each));
        drawn = points.length > 1 ? Date.now() : 0;
      }
    },
  };
}

/** Figures of an event, kept for the small pictures; and the hour before, which is fetched once. */
export function remember(pipelines) {
  const at = now();
  for (const each of pipelines) {
    const points = histories.get(each.key) || [];
    histories.set(each.key, points);
    if (points.length && at - points.at(-1)[0] < 5) continue;
    points.push([at, each.rate, each.lag]);
    while (points[0][0] < at - 3600) points.shift();
  }
  const missing = pipelines.filter((each) => !asked.has(each.key)).slice(0, Math.max(0, HISTORIES - asked.size));
  missing.forEach((each) => asked.add(each.key));
  fetchHistories(missing.map((each) => each.key));
}

async function fetchHistories(keys) {
  for (const [index, key] of keys.entries()) {
    try {
      const { history = [] } = await get(pathOf(key));
      const since = histories.get(key)?.[0]?.[0] ?? Infinity;
      histories.set(key, [...history.filter((point) => point[0] < since), ...(histories.get(key) || [])]);
    } catch {
      keys.slice(index).forEach((each) => asked.delete(each)); // they are asked again with the next event
      return;
    }
  }
}

/** Put the focus on the row of a pipeline, for those who come back from it. */
export function focusRow(key) {
  rows.get(key)?.link.focus();
}
