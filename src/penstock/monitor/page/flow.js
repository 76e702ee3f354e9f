// The picture of a pipeline: source, steps, sinks and dead letters, with live rates on the arrows and what stalls in colour.

import { attribute, compact, el, health, isGrowing, number, put, rate, svg } from "./format.js";

const WIDTH = 164;
const HEIGHT = 66;
const GAP = 104; // room for a rate on an arrow
const BETWEEN = 22;
const STEPS = 4; // more become one
const PARTS = { source: "Source", transform: "Step", sink: "Sink", dead_letters: "Dead letters", query: "Query" };

export class Flow {
  constructor() {
    this.svg = svg("svg", { role: "img" });
    this.node = el("div.flow", {}, this.svg);
    this.seen = "";
    this.samples = [];
    new ResizeObserver(([entry]) => {
      this.room = entry.contentRect.width;
      if (this.last) this.update(this.last);
    }).observe(this.node);
  }

  update(detail) {
    this.last = detail;
    const fits = (count) => (this.room ?? 900) > 0.9 * (count * (WIDTH + GAP) - GAP);
    let columns = columnsOf(detail, STEPS);
    if (!fits(columns.length)) columns = columnsOf(detail, fits(4) ? 2 : STEPS);
    const isTall = !fits(columns.length);
    const seen = JSON.stringify([detail.flow, isTall, columns.length]);
    if (seen !== this.seen) {
      this.seen = seen;
      this.build(columns, isTall, detail);
    }
    this.paint(detail);
  }

  build(columns, isTall, detail) {
    this.nodes = [];
    this.edges = [];
    const most = Math.max(...columns.map((column) => column.length));
    const across = most * HEIGHT + (most - 1) * BETWEEN;
    let width;
    let height;
    if (isTall) {
      width = WIDTH + 60;
      height = place(columns, (column, row, before) => ({ x: row ? 30 : 0, y: before }));
    } else {
      width = columns.length * (WIDTH + GAP) - GAP;
      height = across;
      columns.forEach((column, index) => column.forEach((part, row) => {
        const free = across - (column.length * HEIGHT + (column.length - 1) * BETWEEN);
        part.x = index * (WIDTH + GAP);
        part.y = free / 2 + row * (HEIGHT + BETWEEN);
      }));
    }
    const arrows = [];
    columns.slice(1).forEach((column, index) => {
      const from = columns[index][0];
      column.forEach((to, row) => arrows.push(this.edge(from, to, isTall, index, row, column.length)));
    });
    const boxes = columns.flat().map((part) => this.box(part));
    this.svg.replaceChildren(svg("title"), ...arrows, ...boxes);
    attribute(this.svg, "viewBox", `-2 -2 ${width + 4} ${height + 4}`);
    attribute(this.svg, "width", width + 4);
    attribute(this.svg, "height", height + 4);
    put(this.svg.firstChild, `${detail.name}: ${columns.map((column) => column.map((part) => part.name || part.type).join(" and ")).join(", then ")}.`);
  }

  box(part) {
    const note = svg("text.note", { x: WIDTH - 12, y: 20, "text-anchor": "end" });
    const node = svg("g.part", { transform: `translate(${part.x},${part.y})` },
      svg("title", {}, [PARTS[part.part] || part.part, part.name, part.type, part.text].filter(Boolean).join(" · ")),
      svg("rect", { width: WIDTH, height: HEIGHT, rx: 10 }),
      svg("text.kind", { x: 14, y: 20 }, PARTS[part.part] || part.part),
      svg("text.name", { x: 14, y: 39 }, cut(part.name || part.type, 18)),
      svg("text.type", { x: 14, y: 55 }, cut(part.text || (part.name && part.name !== part.type ? part.type : ""), 21)),
      note);
    this.nodes.push({ part, node, note });
    return node;
  }

  edge(from, to, isTall, index, row, count) {
    const label = svg("text.rate", { "text-anchor": isTall ? "start" : "middle" });
    let d;
    if (isTall) {
      const x = 16;
      d = row === 0 ? `M${x},${from.y + HEIGHT}V${to.y - 5}` : `M${x},${from.y + HEIGHT}V${to.y + HEIGHT / 2}H${to.x - 5}`;
      attribute(label, "x", x + 14);
      attribute(label, "y", to.y - 12);
    } else {
      const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x - 6, to.y + HEIGHT / 2];
      const bend = (x2 - x1) / 2;
      d = `M${x1},${y1}C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
      attribute(label, "x", (x1 + x2) / 2);
      attribute(label, "y", count > 1 ? (row === 0 ? y2 - 10 : y2 + 20) : y1 - 9);
    }
    const line = svg("path.way", { d });
    const flowing = svg("path.water", { d });
    const tip = isTall && row === 0 ? [16, to.y] : [to.x, to.y + HEIGHT / 2];
    const turn = isTall && row === 0 ? 90 : 0;
    const head = svg("path.tip", { d: "M-8,-4.5L0,0L-8,4.5Z", transform: `translate(${tip})rotate(${turn})` });
    const node = svg("g.edge", {}, line, flowing, head, label);
    this.edges.push({ node, label, to, index, row });
    return node;
  }

  paint(detail) {
    const how = health(detail);
    const grows = isGrowing(detail.history || []);
    const stalls = how === "running" && detail.lag > 0 && detail.rate === 0;
    const written = this.written(detail);
    const blamed = this.nodes.filter(({ part }) => part.part !== "transform" && part.name && detail.error.includes(`'${part.name}'`));
    for (const { part, node, note } of this.nodes) {
      const ill = (how === "failed" || how === "waiting") && (blamed.length ? blamed.some((each) => each.node === node) : true);
      const late = part.part === "source" && (grows || stalls || how === "behind");
      attribute(node, "class", `part ${part.part} ${ill ? "ill" : late ? "late" : ""}`);
      if (part.part === "source") put(note, detail.lag == null ? "" : `${compact(detail.lag)} unread`);
      if (part.part === "dead_letters") put(note, detail.errors_count ? compact(detail.errors_count) : "none");
    }
    for (const { node, label, to, index, row } of this.edges) {
      const dead = to.part === "dead_letters";
      const is = how === "running" || how === "behind";
      const tone = !is ? (how === "off" ? "off" : "ill") : index === 0 && (grows || stalls || how === "behind") ? "late" : "";
      attribute(node, "class", `edge ${dead ? "dead" : ""} ${tone} ${is && detail.rate > 0 && !dead ? "flows" : ""}`);
      const last = index === Math.max(...this.edges.map((edge) => edge.index));
      const shown = index === 0 ? detail.rate : last && !dead && row === 0 ? written : null;
      put(label, shown == null || how === "off" ? "" : `${rate(shown)} rows/s`);
    }
  }

  /** Rows a second that sinks took of late; null where Spark does not know, or too little time has passed. */
  written(detail) {
    const now = Date.now() / 1000;
    if (this.samples.length && (detail.written < this.samples.at(-1)[1] || this.samples[0][2] !== detail.key)) this.samples = [];
    this.samples.push([now, detail.written, detail.key]);
    this.samples = this.samples.filter((sample) => sample[0] > now - 15);
    const [first] = this.samples;
    return detail.written > 0 && now - first[0] > 3 ? (detail.written - first[1]) / (now - first[0]) : null;
  }
}

/** Parts in columns: the source, each step, and all sinks. Many steps become one. */
function columnsOf(detail, most) {
  const of = (part) => detail.flow.filter((each) => each.part === part).map((each) => ({ ...each }));
  const sources = of("source");
  const steps = of("transform");
  const sinks = [...of("sink"), ...of("dead_letters")];
  const few = steps.length <= most ? steps.map((step) => [step])
    : [[{ part: "transform", name: `${number(steps.length)} steps`, type: "", text: steps.map((step) => step.type).join(", ") }]];
  for (const [step] of few) step.text = (step.text || "").split("\n")[0];
  if (!sinks.length) sinks.push({ part: "query", name: detail.name, type: "" });
  if (!sources.length) sources.push({ part: "source", name: "", type: "not known yet" });
  return [sources, ...few, sinks];
}

/** One below the other. Returns how high it is. */
function place(columns, at) {
  let y = 0;
  columns.forEach((column, index) => {
    column.forEach((part, row) => {
      const { x } = at(column, row, y);
      part.x = index === columns.length - 1 && row ? 40 : x;
      part.y = y;
      y += HEIGHT + (row < column.length - 1 ? BETWEEN : 46);
    });
  });
  return y - 46;
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
