// JetStream's streams and consumers, what is worst first. Nothing of it is there where the program watches no server.

import { attribute, clock, compact, el, number, plural, put, rate, seconds, UNKNOWN } from "./format.js";
import { get } from "./live.js";

const EVERY = 3000; // the program asks its servers no oftener
const $ = (id) => document.getElementById(id);
let servers = [];
let drawn = "";

const UNITS = ["B", "KB", "MB", "GB", "TB"];
function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count >= 100 || unit === 0 ? number(count) : count.toFixed(1)} ${UNITS[unit]}`;
}

const STREAMS = [
  ["Messages", (each) => number(each.messages)],
  ["Stored", (each) => bytes(each.bytes)],
  ["In/s", (each) => rate(each.rate)],
  ["Out/s", (each) => rate(each.out_rate)],
  ["Full", (each) => (each.full ? `${Math.round(each.full * 100)} %` : UNKNOWN)],
  ["Consumers", (each) => number(each.consumers)],
  ["Replicas", (each) => `${each.replicas}${each.behind.length ? `, ${each.behind.join(", ")} away` : ""}`],
];
const CONSUMERS = [
  ["Unread", (each) => number(each.pending)],
  ["Given/s", (each) => rate(each.rate)],
  ["Behind", (each) => seconds(each.lag_seconds)],
  ["Unacknowledged", (each) => number(each.ack_pending)],
  ["Given again", (each) => number(each.redelivered)],
];

function table(title, columns, rows, nameOf, toneOf, noteOf, rest) {
  const cell = (kind, label, text) => el(`${kind}.num`, { role: "cell", "data-label": label }, text);
  const lines = rows.map((each) => {
    const note = noteOf(each);
    const name = el("th", { scope: "row", role: "rowheader" }, nameOf(each), note ? el("p.error", {}, note) : null);
    return el("tr", { role: "row", class: toneOf(each) || null }, name, ...columns.map(([label, value]) => cell("td", label, value(each))));
  });
  if (rest) lines.push(el("tr", { role: "row" }, el("td", { colspan: columns.length + 1, role: "cell" }, rest)));
  const heads = [title, ...columns.map(([label]) => label)];
  return el(
    "table.fleet",
    { role: "table" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads.map((label, at) => el(at ? "th.num" : "th", { scope: "col", role: "columnheader" }, label)))),
    el("tbody", { role: "rowgroup" }, ...lines),
  );
}

function block(server) {
  const parts = [];
  if (servers.length > 1) parts.push(el("h3", {}, server.place));
  if (server.error) parts.push(el("p.trouble", {}, server.at ? `${server.error} What you see is from ${clock(server.at)}.` : server.error));
  for (const text of [...(server.missing || []).map((name) => `Stream ${name} does not answer: it has no leader.`), ...(server.problems || [])]) parts.push(el("p.note", {}, text));
  const others = server.other_streams;
  const more = server.other_consumers;
  if (server.streams.length) {
    const rest = others ? `${plural(others.count, "other stream", "other streams")}: ${compact(others.messages)} messages, ${bytes(others.bytes)}, ${rate(others.rate)} in a second.` : "";
    const tone = (each) => (each.behind.length ? "failed" : each.full >= 1 ? "behind" : "");
    parts.push(table("Stream", STREAMS, server.streams, (each) => each.stream, tone, () => "", rest));
  }
  if (server.consumers.length) {
    const rest = more ? `${plural(more.count, "other consumer", "other consumers")}: ${number(more.pending)} messages unread.` : "";
    const tone = (each) => (each.harm > 1 ? "failed" : each.harm ? "behind" : "");
    parts.push(table("Consumer", CONSUMERS, server.consumers, (each) => `${each.stream} / ${each.consumer}`, tone, (each) => each.trouble, rest));
  }
  return el("div", {}, ...parts);
}

function render() {
  const section = $("jetstream");
  section.hidden = !servers.length;
  const text = JSON.stringify(servers.map((each) => ({ ...each, at: each.error ? each.at : 0 })));
  if (text === drawn) return;
  drawn = text;
  put($("jetstream-said"), sentence());
  attribute($("jetstream-said"), "data-tone", tone());
  $("jetstream-servers").replaceChildren(...servers.map(block));
}

const still = () => servers.reduce((sum, server) => sum + server.consumers.filter((each) => each.harm > 1).length, 0);
const away = () => servers.filter((server) => server.error).length;

function tone() {
  return still() || away() ? "failed" : "running";
}

function sentence() {
  if (away()) return servers.length === 1 ? "The server does not answer." : `${away()} of ${servers.length} servers do not answer.`;
  if (still()) return `${plural(still(), "consumer stands", "consumers stand")} still.`;
  const count = (kind, other) => servers.reduce((sum, server) => sum + server[kind].length + (server[other]?.count ?? 0), 0);
  return `${plural(count("streams", "other_streams"), "stream", "streams")}, ${plural(count("consumers", "other_consumers"), "consumer", "consumers")}.`;
}

/** The headline of a page without pipelines; null where there is nothing to say. */
export function headlineOfStreams() {
  if (!servers.length) return null;
  const said = sentence();
  return { tone: tone(), text: said.replace(/\.$/, ""), short: said.replace(/\.$/, "") };
}

/** Ask while the page can be seen, for as long as there is something to show. `changed()` after each answer. */
export async function watchStreams(changed) {
  for (;;) {
    try {
      if (document.visibilityState === "visible") {
        servers = await get("jetstream");
        render();
        changed();
        if (!servers.length && !(await later(2 * EVERY))) return;
      }
    } catch {
      // The page says by itself that the program does not answer, or wants the key.
    }
    await new Promise((resolve) => setTimeout(resolve, EVERY));
  }
}

/** Whether there is something after a while: before its first answer, nobody knows that a server has no JetStream. */
async function later(wait) {
  await new Promise((resolve) => setTimeout(resolve, wait));
  return (await get("jetstream")).length > 0;
}
