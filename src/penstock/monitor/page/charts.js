// Lines over time, and what batches took by stage. Drawn as SVG by hand; each has a sentence for those who do not see it.

import { attribute, clock, el, minute, put, seconds, svg } from "./format.js";
import { now } from "./live.js";

const HEIGHT = 150;
const TOP = 10;
const BOTTOM = 22;

/** The shape of the last hour in the size of a word. */
export class Sparkline {
  constructor() {
    this.area = svg("path.area");
    this.line = svg("path.line");
    this.node = svg("svg.spark", { viewBox: "0 0 120 28", role: "img", preserveAspectRatio: "none" }, this.area, this.line);
  }

  update(points, tone) {
    const known = points.filter((point) => point[1] != null);
    attribute(this.node, "aria-label", known.length > 1 ? spoken(known.map((point) => point[1])) : "Not known yet.");
    attribute(this.node, "class", `spark ${tone}`);
    if (known.length < 2) return;
    const end = known.at(-1)[0];
    const begin = Math.min(known[0][0], end - 300);
    const top = Math.max(...known.map((point) => point[1]), 1);
    const x = (at) => ((at - begin) / (end - begin)) * 120;
    const y = (value) => 26 - (value / top) * 24;
    const line = path(thinned(known, 120), x, y);
    attribute(this.line, "d", line);
    attribute(this.area, "d", `${line}L120,28L${x(known[0][0]).toFixed(1)},28Z`);
  }
}

function spoken(values) {
  const [first, last] = [values[0], values.at(-1)];
  const trend = last > first * 1.2 + 10 ? "It grows" : last < first / 1.2 - 10 ? "It falls" : "It is steady";
  return `${trend}: ${Math.round(first).toLocaleString("en-US")} at first, ${Math.round(last).toLocaleString("en-US")} now.`;
}

function path(points, x, y) {
  return points.map((point, index) => `${index ? "L" : "M"}${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join("");
}

/** At most so many points; of each stretch, the highest, so that no peak is lost. */
function thinned(points, most) {
  if (points.length <= most * 2) return points;
  const size = points.length / most;
  const peaks = Array.from({ length: most }, (_, index) => {
    const stretch = points.slice(Math.floor(index * size), Math.floor((index + 1) * size));
    return stretch.reduce((highest, point) => (point[1] > highest[1] ? point : highest));
  });
  return [...peaks, points.at(-1)];
}

/** A round number at or above a value, for the top of an axis. */
export function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

/** One figure over the last hour. `column`: where it is in a row of the history. */
export class LineChart {
  constructor(title, column, format, most) {
    Object.assign(this, { column, format, most: most || format, points: [], tone: "" });
    this.now = el("span.now");
    this.summary = el("p.summary");
    this.grid = svg("g.grid");
    this.area = svg("path.area");
    this.line = svg("path.line");
    this.cross = svg("line.cross", { y1: TOP, y2: HEIGHT - BOTTOM });
    this.mark = svg("circle.mark", { r: 3.5 });
    this.svg = svg("svg.chart", { role: "img", height: HEIGHT }, this.area, this.line, this.grid, this.cross, this.mark);
    this.node = el("figure", {}, el("figcaption", {}, el("h3", {}, title), this.now), this.svg, this.summary);
    this.title = title;
    this.ticks = Array.from({ length: 3 }, () => svg("g", {}, svg("line"), svg("text")));
    this.times = Array.from({ length: 5 }, () => svg("text.at", { y: HEIGHT - 5 }));
    this.grid.append(...this.ticks, ...this.times);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(([entry]) => this.resize(entry.contentRect.width)).observe(this.svg);
  }

  resize(width) {
    if (Math.round(width) === this.width) return;
    this.width = Math.round(width);
    attribute(this.svg, "viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.draw();
  }

  update(history, tone) {
    this.points = history.filter((row) => row[this.column] != null).map((row) => [row[0], row[this.column]]);
    attribute(this.svg, "class", `chart ${tone}`);
    this.draw();
  }

  draw() {
    const points = this.points;
    if (!points.length || !this.width) {
      put(this.summary, points.length ? "" : "Nothing is known of this yet.");
      return;
    }
    const values = points.map((point) => point[1]);
    const high = Math.max(...values);
    const top = ceiling(high || 1);
    const last = points.at(-1);
    const end = Math.max(last[0], now());
    const begin = Math.min(points[0][0], end - 300);
    this.newest = `${end - last[0] > 60 ? `${clock(last[0])}: ` : ""}${this.format(last[1])}`;
    this.x = (at) => ((at - begin) / (end - begin)) * this.width;
    this.y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
    const gap = longest(points);
    const line = runs(thinned(points, Math.max(60, Math.floor(this.width / 2))), gap);
    attribute(this.line, "d", line.map((run) => path(run.length > 1 ? run : [run[0], run[0]], this.x, this.y)).join(""));
    const foot = HEIGHT - BOTTOM;
    const areas = line.map((run) => `${path(run, this.x, this.y)}L${this.x(run.at(-1)[0]).toFixed(1)},${foot}L${this.x(run[0][0]).toFixed(1)},${foot}Z`);
    attribute(this.area, "d", areas.join(""));
    this.drawGrid(top, begin, end);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const low = Math.min(...values);
    put(this.summary, `Lowest ${this.format(low)}, mean ${this.format(mean)}, highest ${this.format(high)}.`);
    attribute(this.svg, "aria-label", `${this.title} since ${minute(points[0][0])}. Last ${this.format(values.at(-1))}.`);
    this.point(this.pointed);
  }

  drawGrid(top, begin, end) {
    this.ticks.forEach((tick, index) => {
      const value = (top * index) / 2;
      const [line, text] = tick.children;
      for (const [name, at] of [["x1", 0], ["x2", this.width], ["y1", this.y(value)], ["y2", this.y(value)]]) attribute(line, name, at);
      attribute(text, "y", this.y(value) - 4);
      put(text, index ? this.most(value) : "");
    });
    const places = this.width > 420 ? 5 : 3;
    this.times.forEach((text, index) => {
      const part = index / (places - 1);
      attribute(text, "x", part * this.width);
      attribute(text, "text-anchor", index === 0 ? "start" : index === places - 1 ? "end" : "middle");
      put(text, index < places ? minute(begin + (end - begin) * part) : "");
    });
  }

  /** Show the figures of the moment under the pointer. */
  point(x) {
    this.pointed = x;
    const is = x != null && this.points.length > 0 && this.x != null;
    attribute(this.cross, "visibility", is ? "visible" : "hidden");
    attribute(this.mark, "visibility", is ? "visible" : "hidden");
    if (!is) {
      if (this.newest) put(this.now, this.newest);
      return;
    }
    const near = this.points.reduce((best, point) => (Math.abs(this.x(point[0]) - x) < Math.abs(this.x(best[0]) - x) ? point : best));
    attribute(this.cross, "x1", this.x(near[0]));
    attribute(this.cross, "x2", this.x(near[0]));
    attribute(this.mark, "cx", this.x(near[0]));
    attribute(this.mark, "cy", this.y(near[1]));
    put(this.now, `${clock(near[0])}: ${this.format(near[1])}`);
  }
}

/** From how many seconds on there is a hole in the line. */
function longest(points) {
  const steps = points.slice(1).map((point, index) => point[0] - points[index][0]).sort((one, other) => one - other);
  return Math.max(60, 6 * (steps[Math.floor(steps.length / 2)] || 0));
}

function runs(points, gap) {
  const found = [[points[0]]];
  points.slice(1).forEach((point, index) => {
    if (point[0] - points[index][0] > gap) found.push([]);
    found.at(-1).push(point);
  });
  return found;
}

const STAGES = [
  ["addBatch", "Read, transform and write"],
  ["latestOffset", "Ask how far the source is"],
  ["getBatch", "Find what is to be read"],
  ["queryPlanning", "Plan the query"],
  ["walCommit", "Note what the batch will read"],
  ["commitOffsets", "Note that the batch is done"],
  ["other", "All else"],
];
const BARS = 40;

/** What the last batches took, by stage. */
export class StageChart {
  constructor() {
    this.paths = STAGES.map((_, index) => svg(`path.stage-${index}`));
    this.label = svg("text.at", { x: 0, y: 10 });
    this.svg = svg("svg.chart", { role: "img", height: HEIGHT }, this.label, ...this.paths);
    this.legend = STAGES.map(([name, words], index) =>
      el("tr", {}, el("th", { scope: "row" }, el(`i.stage-${index}`), words, name === "other" ? null : el("code", {}, name)), el("td.num"), el("td.num")));
    const head = el("tr", {}, ...["Stage", "Mean", "Share"].map((text, index) => el(index ? "th.num" : "th", { scope: "col" }, text)));
    const table = el("table.legend", {}, el("thead", {}, head), el("tbody", {}, ...this.legend));
    const title = el("figcaption", {}, el("h3", {}, "What batches spend their time on"));
    this.node = el("figure.stages", {}, el("div", {}, title, this.svg), table);
    new ResizeObserver(([entry]) => {
      this.width = Math.round(entry.contentRect.width);
      attribute(this.svg, "viewBox", `0 0 ${this.width} ${HEIGHT}`);
      this.draw();
    }).observe(this.svg);
  }

  update(batches) {
    this.bars = batches.slice(0, BARS).reverse().map((batch) => {
      const parts = STAGES.slice(0, -1).map(([name]) => batch.seconds[name] || 0);
      const sum = parts.reduce((total, part) => total + part, 0);
      return [...parts, Math.max(0, (batch.seconds.triggerExecution || 0) - sum)];
    });
    this.draw();
  }

  draw() {
    if (!this.bars?.length || !this.width) return;
    const wholes = this.bars.map((bar) => bar.reduce((sum, part) => sum + part, 0));
    const top = ceiling(Math.max(...wholes) || 1);
    const step = this.width / BARS;
    const shapes = STAGES.map(() => "");
    this.bars.forEach((bar, index) => {
      const left = this.width - (this.bars.length - index) * step;
      let y = HEIGHT - 2;
      bar.forEach((part, stage) => {
        const height = (part / top) * (HEIGHT - 20);
        if (height > 0) shapes[stage] += `M${left.toFixed(1)},${y.toFixed(1)}h${(step * 0.7).toFixed(1)}v${(-height).toFixed(2)}h${(-step * 0.7).toFixed(1)}Z`;
        y -= height;
      });
    });
    this.paths.forEach((node, index) => attribute(node, "d", shapes[index]));
    put(this.label, `The last ${this.bars.length} batches, up to ${seconds(Math.max(...wholes))}`);
    const whole = wholes.reduce((sum, part) => sum + part, 0) || 1;
    this.legend.forEach((row, stage) => {
      const sum = this.bars.reduce((total, bar) => total + bar[stage], 0);
      put(row.cells[1], seconds(sum / this.bars.length));
      put(row.cells[2], `${Math.round((sum / whole) * 100)} %`);
      row.hidden = sum === 0;
    });
    attribute(this.svg, "aria-label", `What the last ${this.bars.length} batches took. The table below has the same in numbers.`);
  }
}
