// One pipeline: how it goes, a picture of its flow, its last hour, and what it can be told.

import { attribute, compact, el, health, isGrowing, number, put, rate, seconds, setMoment } from "./format.js";
import { get, now, pathOf } from "./live.js";
import { Flow } from "./flow.js";
import { LineChart, StageChart } from "./charts.js";
import { Batches, Configuration, DeadLetters, Log, Shards, troubles } from "./panels.js";
import { Orders } from "./orders.js";

const FIGURES = [
  ["Rows/s", (it) => rate(it.rate)],
  ["Unread rows", (it) => number(it.lag)],
  ["Behind", (it) => seconds(it.lag_seconds)],
  ["Batch", (it) => number(it.batch)],
  ["Last batch took", (it) => seconds(it.batch_seconds)],
  ["Rows read", (it) => compact(it.messages_read), (it) => number(it.messages_read)],
  ["Errors in records", (it) => number(it.errors_count)],
  ["Restarts", (it) => number(it.restarts)],
];

/** How it goes, in a sentence. */
export function sentenceOf(it, grows) {
  const how = health(it);
  if (how === "failed") return `It has failed${it.failures > 1 ? `, ${it.failures} times in a row` : ""}, and does nothing until it is started again.`;
  if (how === "waiting") return it.restarts_in == null ? `It is ${it.state}.` : `It failed, and starts again by itself in ${seconds(it.restarts_in)}.`;
  if (how === "off") return `It is ${it.state}.`;
  if (it.batch == null) return "It runs, and has not told of a batch yet.";
  if (it.lag > 0 && it.rate === 0) return "It runs, but reads nothing, although there are unread rows.";
  if (grows) return "It runs, and more comes in than it can take: it falls further behind.";
  return how === "behind" ? "It runs, and catches up or keeps its distance." : "It runs, and keeps up.";
}

export class Detail {
  constructor(key, place) {
    this.key = key;
    this.least = 0; // when it may be fetched again
    this.heading = el("h1", { id: "title", tabindex: "-1" }, key);
    this.dot = el("span.dot", { "aria-hidden": "true" });
    this.word = el("span");
    this.state = el("p.state", {}, this.dot, this.word);
    this.sentence = el("p.lead");
    this.guarantee = el("p.note");
    this.error = el("p.callout");
    this.trouble = el("p.callout", { role: "alert" });
    this.trouble.hidden = this.error.hidden = true;
    this.figures = FIGURES.map(([label]) => el("div", {}, el("dt", {}, label), el("dd")));
    this.last = el("time");
    this.lastLine = el("p.note", {}, "Last batch: ", this.last, el("span"));
    this.orders = new Orders(key, () => this.refresh(true));
    this.flow = new Flow();
    this.charts = [
      [new LineChart("Rows a second", 1, rate, compact), false],
      [new LineChart("Unread rows", 2, number, compact), true],
      [new LineChart("Behind", 3, seconds), true],
      [new LineChart("What a batch took", 4, seconds), false],
    ];
    this.stages = new StageChart();
    this.shards = new Shards();
    this.batches = new Batches();
    this.log = new Log();
    this.configuration = new Configuration();
    this.letters = new DeadLetters(key);
    this.body = el("div", {}, el("dl.figures", {}, ...this.figures), this.lastLine,
      el("section.panel", { "aria-label": "Flow" }, el("h2", {}, "Flow"), this.flow.node),
      el("section.panel", { "aria-label": "The last hour" }, el("h2", {}, "The last hour"),
        el("div.charts", {}, ...this.charts.map(([chart]) => chart.node), this.stages.node)),
      this.letters.node, this.shards.node, this.batches.node, this.log.node, this.configuration.node);
    place.replaceChildren(
      el("nav", { "aria-label": "Where you are" }, el("a.back", { href: "#/" }, "← All pipelines")),
      el("div.head", {}, el("div", {}, this.heading, this.state), this.orders.node),
      this.sentence, this.guarantee, this.orders.answer, this.error, this.trouble, this.body);
    this.body.hidden = true;
  }

  /** Fetch and show, at most once a second, and less often where it takes long. */
  async refresh(atOnce = false) {
    if (this.isAsking || (!atOnce && Date.now() < this.least)) return;
    this.isAsking = true;
    const began = Date.now();
    try {
      this.show(await get(pathOf(this.key)));
      this.trouble.hidden = true;
    } catch (error) {
      if (error.status && error.status !== 401) {
        put(this.trouble, error.message);
        this.trouble.hidden = false;
      }
    }
    this.isAsking = false;
    this.least = began + Math.max(950, 4 * (Date.now() - began));
  }

  show(it) {
    const how = health(it);
    const history = it.history || [];
    const grows = how !== "off" && isGrowing(history);
    this.body.hidden = false;
    put(this.heading, it.name);
    attribute(this.state, "class", `state ${how}`);
    put(this.word, it.restarts_in == null ? it.state : `${it.state}, in ${seconds(it.restarts_in)}`);
    put(this.sentence, sentenceOf(it, grows));
    put(this.guarantee, it.guarantee ? `Guarantee: ${it.guarantee}.` : "A query of a program, which alone can start and stop it.");
    put(this.error, it.error);
    this.error.hidden = !it.error;
    FIGURES.forEach(([, format, more], index) => {
      put(this.figures[index].lastChild, format(it));
      if (more) attribute(this.figures[index].lastChild, "title", more(it));
    });
    attribute(this.figures[1], "class", grows ? "late" : "");
    attribute(this.figures[2], "class", grows || how === "behind" ? "late" : "");
    setMoment(this.last, it.at);
    const ago = it.at == null ? "" : `, ${seconds(Math.max(0, now() - it.at))} ago`;
    put(this.lastLine.lastChild, `${ago}. ${troubles(it.figures)}`);
    this.orders.update(it);
    this.flow.update(it);
    for (const [chart, ofLag] of this.charts) chart.update(history, ofLag && (grows || how === "behind") ? "behind" : "");
    this.stages.update(it.batches || []);
    this.shards.update(it.sources || []);
    this.batches.update(it.batches || []);
    this.log.update(it.log || []);
    this.configuration.update(it.flow);
    this.letters.update(it);
  }
}
