// Talks to the program: questions, orders, and events that keep coming. Knows the key.

const KEY = "penstock-key";
const SILENT = 25_000; // the program says something every 15 s at least
const LONGEST = 10_000;

/** What the program refused, in its own sentence. */
export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Take the key out of the address, so that it is neither seen nor kept in the history. */
export function keyFromAddress() {
  const found = /^#key=([^&]*)&?(.*)$/.exec(location.hash);
  if (!found) return;
  try {
    key.set(decodeURIComponent(found[1]));
  } catch {
    key.set(found[1]);
  }
  history.replaceState(null, "", `${location.pathname}${location.search}${found[2] ? `#${found[2]}` : ""}`);
}

function headers() {
  return key.get() ? { "api-key": key.get() } : {};
}

let ahead = 0;

/** What time it is for the program, whose clock the figures have: seconds since 1970. */
export function now() {
  return (Date.now() + ahead) / 1000;
}

function setClock(answer) {
  const told = Date.parse(answer.headers.get("date"));
  const apart = told - Date.now();
  ahead = Math.abs(apart) > 2000 ? apart : 0; // the header knows whole seconds
}

async function refusal(answer) {
  const said = await answer.json().catch(() => ({}));
  const sentence = said.error || `the program answered with status ${answer.status}.`;
  return new Refused(answer.status, sentence[0].toUpperCase() + sentence.slice(1));
}

/** The path of a pipeline, whatever its name is. */
export function pathOf(name) {
  return `pipelines/${encodeURIComponent(name)}`;
}

export async function get(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store" });
  setClock(answer);
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

export async function post(path, body = {}) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

/**
 * Events, for as long as the page is open. `heard(pipelines)` for each; `lost({since, next, refused})` while the program
 * does not answer, once a second.
 */
export class Live {
  constructor(heard, lost) {
    this.heard = heard;
    this.lost = lost;
    this.since = null;
    this.wait = 500;
    this.wake = () => {};
    addEventListener("online", () => this.tryNow());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.tryNow());
  }

  tryNow() {
    this.wait = 500;
    this.wake();
  }

  async run() {
    for (;;) {
      let refused = null;
      try {
        await this.listen();
      } catch (error) {
        refused = error instanceof Refused && (error.status === 401 || error.status === 403) ? error : null;
      }
      this.since ??= Date.now();
      await this.pause(refused);
      this.wait = Math.min(LONGEST, this.wait * 2);
    }
  }

  /** Read events until there are no more. */
  async listen() {
    const control = new AbortController();
    let alarm = setTimeout(() => control.abort(), SILENT);
    try {
      const answer = await fetch("events", { headers: headers(), cache: "no-store", signal: control.signal });
      if (!answer.ok) throw await refusal(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(alarm);
        alarm = setTimeout(() => control.abort(), SILENT);
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        const newest = events.filter((event) => event.startsWith("event: pipelines\n")).at(-1);
        if (newest) {
          this.since = null;
          this.wait = 500;
          this.heard(JSON.parse(newest.slice(newest.indexOf("data: ") + 6)));
        }
      }
    } finally {
      clearTimeout(alarm);
    }
  }

  /** Wait before the next try. Refused for want of a key, until there is another one. */
  async pause(refused) {
    const until = Date.now() + this.wait * (0.8 + 0.4 * Math.random());
    let woken = false;
    this.wake = () => (woken = true);
    while (!woken && (refused || Date.now() < until)) {
      this.lost({ since: this.since, next: Math.max(0, until - Date.now()), refused });
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, Math.min(1000, refused ? 1000 : Math.max(50, until - Date.now())));
        this.wake = () => {
          woken = true;
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }
}
