// Tables of one pipeline: shards, batches, log, configuration, dead letters. Rows are kept and their text is changed.

import { attribute, el, moment, number, plural, put, seconds, UNKNOWN } from "./format.js";
import { get, pathOf } from "./live.js";

const FEW = 20;

function panel(title, ...children) {
  return el("section.panel", { "aria-label": title }, el("h2", {}, title), ...children);
}

function scrolling(label, table) {
  return el("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, table);
}

function headed(...columns) {
  const cells = columns.map(([text, kind]) => el(kind ? `th.${kind}` : "th", { scope: "col" }, text));
  return el("table", {}, el("thead", {}, el("tr", {}, ...cells)), el("tbody"));
}

/** Which streams, partitions or shards are behind, the furthest first. */
export class Shards {
  constructor() {
    this.groups = el("div");
    this.node = panel("Shards, by unread rows", this.groups);
    this.tables = [];
  }

  update(sources) {
    this.node.hidden = !sources.some((source) => source.shards.length);
    while (this.tables.length < sources.length) {
      const table = headed(["Shard"], ["Next position", "num"], ["Unread rows", "num"]);
      const words = el("p.note");
      const group = el("div", {}, words, scrolling("Shards", table));
      this.groups.append(group);
      this.tables.push({ group, words, body: table.tBodies[0] });
    }
    while (this.tables.length > sources.length) this.tables.pop().group.remove();
    sources.forEach((source, index) => this.fill(source, this.tables[index]));
  }

  fill(source, { words, body }) {
    const all = source.shards.length + source.other_shards;
    const rest = source.other_shards ? ` These are the ${source.shards.length} that are furthest behind; ${plural(source.other_shards, "other is", "others are")} not shown.` : "";
    put(words, `${source.format}: ${plural(all, "shard", "shards")}.${rest}`);
    while (body.rows.length > source.shards.length) body.lastChild.remove();
    const most = source.shards[0]?.[2] || 1;
    source.shards.forEach(([name, position, lag], index) => {
      const row = body.rows[index] || body.appendChild(el("tr", {}, el("th", { scope: "row" }), el("td.num"), el("td.num.bar", {}, el("i", { "aria-hidden": "true" }), el("span"))));
      put(row.cells[0], name);
      put(row.cells[1], number(position));
      const [bar, text] = row.cells[2].children;
      put(text, number(lag));
      bar.style.transform = `scaleX(${((lag || 0) / most).toFixed(3)})`;
    });
  }
}

/** The last batches. One that is shown never changes, so only new ones are added. */
export class Batches {
  constructor() {
    this.table = headed(["Batch"], ["Began"], ["Rows", "num"], ["Errors", "num"], ["Took", "num"], ["Read up to"]);
    this.more = el("button.quiet", { type: "button" }, "Show all");
    this.more.addEventListener("click", () => {
      this.isWhole = true;
      this.update(this.last);
    });
    this.none = el("p.note", {}, "No batch is done yet.");
    this.node = panel("Last batches", this.none, scrolling("Last batches", this.table), this.more);
    this.shown = new Map();
  }

  update(batches) {
    this.last = batches;
    this.none.hidden = batches.length > 0;
    this.table.hidden = !batches.length;
    const body = this.table.tBodies[0];
    const wanted = batches.slice(0, this.isWhole ? 100 : FEW);
    this.more.hidden = this.isWhole || batches.length <= FEW;
    put(this.more, `Show all ${batches.length}`);
    const names = new Set(wanted.map(nameOf));
    for (const [name, row] of this.shown) {
      if (names.has(name)) continue;
      row.remove();
      this.shown.delete(name);
    }
    wanted.forEach((batch, index) => {
      const name = nameOf(batch);
      if (!this.shown.has(name)) this.shown.set(name, rowOf(batch));
      const row = this.shown.get(name);
      if (body.children[index] !== row) body.insertBefore(row, body.children[index] || null);
    });
  }
}

function nameOf(batch) {
  return `${batch.batch} ${batch.at}`;
}

function rowOf(batch) {
  return el("tr", {}, el("th", { scope: "row" }, number(batch.batch)), el("td", {}, moment(batch.at)),
    el("td.num", {}, number(batch.rows)), el(batch.errors ? "td.num.late" : "td.num", {}, number(batch.errors)),
    el("td.num", {}, seconds(batch.seconds.triggerExecution)), el("td.ends", {}, ends(batch.ends)));
}

/** Positions in short, with the others on demand. */
function ends(sources) {
  const all = sources.flatMap((source) => Object.entries(source)).map(([name, at]) => `${name} ${number(at)}`);
  if (all.length <= 2) return all.join(", ") || UNKNOWN;
  const rest = el("p", {}, all.slice(2).join(", "));
  return el("details", {}, el("summary", {}, `${all.slice(0, 2).join(", ")} and ${all.length - 2}${all.length === 20 ? " or more" : ""} others`), rest);
}

/** What the program said of it, the newest first. */
export class Log {
  constructor() {
    this.list = el("ol.log");
    this.node = panel("Log", scrolling("Log", this.list));
    this.seen = "";
  }

  update(lines) {
    const seen = lines.length ? `${lines.length} ${lines[0][0]} ${lines.at(-1)}` : "";
    this.node.hidden = !lines.length;
    if (seen === this.seen) return;
    this.seen = seen;
    this.list.replaceChildren(...lines.toReversed().map(([at, text]) => el("li", {}, el("span.note", {}, moment(at)), " ", text)));
  }
}

const PARTS = { source: "Source", transform: "Step", sink: "Sink", dead_letters: "Dead letters" };

/** What the file says, without its secrets. */
export class Configuration {
  constructor() {
    this.list = el("div.parts");
    this.node = panel("Configuration", this.list);
    this.seen = "";
  }

  update(flow) {
    const seen = JSON.stringify(flow);
    if (seen === this.seen) return;
    this.seen = seen;
    this.node.hidden = !flow.some((part) => part.options || part.text);
    this.list.replaceChildren(...flow.map((part) => {
      const named = part.name && part.name !== part.type ? `${part.name}, ${part.type}` : part.type;
      const options = Object.entries(part.options || {});
      const pairs = options.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, typeof value === "string" ? value : JSON.stringify(value))]);
      return el("article", {}, el("h3", {}, el("small", {}, PARTS[part.part] || part.part), named),
        part.text ? el("pre", { tabindex: "0", "aria-label": "Text of the step" }, part.text) : null, pairs.length ? el("dl", {}, ...pairs) : null);
    }));
  }
}

const FIGURES = {
  retries: "requests made again", waited: "seconds waited for that", reconnects: "lost connections that came back",
  redelivered: "messages delivered again", skipped: "records skipped", dropped: "messages dropped", alreadyThere: "rows that were there already",
};

/** What planning had trouble with, in a sentence. */
export function troubles(figures) {
  const known = Object.entries(FIGURES).filter(([name]) => figures?.[name]);
  return known.length ? `Since the program began: ${known.map(([name, words]) => `${number(figures[name])} ${words}`).join(", ")}.` : "";
}

/** Records that could not be decoded. They are fetched when somebody wants to see them. */
export class DeadLetters {
  constructor(name) {
    this.name = name;
    this.words = el("p.note", { role: "status" }, "Records that could not be decoded, with what is wrong with them.");
    this.button = el("button", { type: "button" }, "Look at the newest");
    this.button.addEventListener("click", () => this.look());
    this.list = el("ol.letters");
    this.node = panel("Dead letters", this.words, this.button, this.list);
  }

  update(detail) {
    this.node.hidden = !detail.flow.some((part) => part.part === "dead_letters");
  }

  async look() {
    this.button.disabled = true;
    try {
      const letters = await get(`${pathOf(this.name)}/dead-letters`);
      put(this.words, letters.length ? `The newest ${letters.length === 1 ? "one" : number(letters.length)}:` : "There are no dead letters.");
      attribute(this.words, "class", "note");
      this.list.replaceChildren(...letters.map(letterOf));
      put(this.button, "Look again");
    } catch (error) {
      put(this.words, error.status ? error.message : "The program did not answer.");
      attribute(this.words, "class", "note trouble");
    }
    this.button.disabled = false;
  }
}

function letterOf(letter) {
  const at = Date.parse(letter.time) / 1000;
  const place = [letter.stream, letter.position].filter(Boolean).join(", position ");
  return el("li", {}, el("p", {}, el("strong", {}, letter.error || "No reason is given.")),
    el("p.note", {}, place, place ? ", " : "", Number.isNaN(at) ? letter.time : moment(at)), el("pre", { tabindex: "0", "aria-label": "The record" }, letter.value));
}
