// Numbers and times as people read them, and elements. Text goes into the page as text only, never as HTML.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const clockFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const minuteFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const dayFormat = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
export const UNKNOWN = "–";

export function number(value) {
  return value == null ? UNKNOWN : whole.format(value);
}

export function rate(value) {
  if (value == null) return UNKNOWN;
  return Math.abs(value) < 10 ? tenths.format(value) : whole.format(value);
}

export function compact(value) {
  return value == null ? UNKNOWN : short.format(value);
}

export function seconds(value) {
  if (value == null) return UNKNOWN;
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${Math.max(1, Math.round(value * 1000))} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 59.5) return `${Math.round(value)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  return `${whole.format(minutes / 60 / 24)} days`;
}

/** A local time; with the day where it is not today. */
export function clock(at) {
  const date = new Date(at * 1000);
  const today = new Date().toDateString() === date.toDateString();
  return today ? clockFormat.format(date) : `${dayFormat.format(date)}, ${clockFormat.format(date)}`;
}

export function minute(at) {
  return minuteFormat.format(new Date(at * 1000));
}

export function utc(at) {
  return `${new Date(at * 1000).toISOString().replace("T", " ").slice(0, 19)} UTC`;
}

export function plural(count, one, many) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** Set text only where it differs, so that nothing is drawn again for nothing. */
export function put(node, text) {
  const said = String(text);
  if (node.firstChild?.nodeType === Node.TEXT_NODE && !node.firstChild.nextSibling) {
    if (node.firstChild.data !== said) node.firstChild.data = said;
  } else if (node.textContent !== said || node.firstElementChild) {
    node.textContent = said;
  }
}

export function attribute(node, name, value) {
  if (value == null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** An element from `tag.class.class`, attributes and children; strings become text. */
export function el(kind, attributes = {}, ...children) {
  return fill(document.createElement(kind.split(".")[0]), kind, attributes, children);
}

export function svg(kind, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", kind.split(".")[0]), kind, attributes, children);
}

function fill(node, kind, attributes, children) {
  const classes = kind.split(".").slice(1);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  node.append(...children.filter((child) => child != null));
  return node;
}

/** A time that shows UTC where the pointer rests. */
export function moment(at) {
  const node = el("time");
  if (at != null) setMoment(node, at);
  return node;
}

export function setMoment(node, at) {
  put(node, at == null ? UNKNOWN : clock(at));
  attribute(node, "datetime", at == null ? null : new Date(at * 1000).toISOString());
  attribute(node, "title", at == null ? null : utc(at));
}

/** How it goes: failed, waiting, behind, running or off. */
export const BEHIND = 60;
export function health(pipeline) {
  if (pipeline.state === "failed") return "failed";
  if (pipeline.error) return "waiting";
  if (pipeline.state !== "running" && pipeline.state !== "starting") return "off";
  return pipeline.lag_seconds > BEHIND ? "behind" : "running";
}

/** Whether lag grows, by rows of a history: its last third against its first, over five minutes. */
export function isGrowing(history) {
  const last = history.at(-1);
  if (!last) return false;
  const lags = history.filter((point) => point[0] > last[0] - 300 && point[2] != null).map((point) => point[2]);
  if (lags.length < 6) return false;
  const third = Math.floor(lags.length / 3);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const before = mean(lags.slice(0, third));
  const after = mean(lags.slice(-third));
  return after > before * 1.02 + 10 && after > 10 * (last[1] || 0);
}
