// Buttons that change something. Each asks first, and each needs the key, which is asked for once.

import { clock, el, number, plural, put } from "./format.js";
import { get, key, pathOf, post, Refused } from "./live.js";

const $ = (id) => document.getElementById(id);
const OVER = ["stopped", "done", "failed"];
const ORDERS = {
  stop: {
    word: "Stop", question: "Stop this pipeline?", yes: "Stop it", when: (state) => !OVER.includes(state),
    text: "It stops after the batch in hand. Its place is kept: when it is started again, it goes on from there.",
  },
  start: {
    word: "Start", question: "Start this pipeline?", yes: "Start it", when: (state) => OVER.includes(state),
    text: "It goes on where it stopped. Failures before do not count any more.",
  },
  restart: {
    word: "Restart", question: "Restart this pipeline?", yes: "Restart it", when: () => true,
    text: "It stops after the batch in hand, and starts again from there.",
  },
  rewind: {
    word: "Rewind …", question: "Set this pipeline back?", yes: "Set it back", when: () => true,
    text: "It reads all again that came after the batch that you choose. Sinks that know rows again leave out what they have; others get it twice.",
  },
};

/** Show a dialog until it is answered. `accept` may throw a sentence, which is shown, and the dialog stays. */
function answered(dialog, trouble, accept) {
  return new Promise((resolve) => {
    const form = dialog.querySelector("form");
    const controller = new AbortController();
    const finish = (value) => {
      controller.abort();
      if (dialog.open) dialog.close();
      resolve(value);
    };
    const on = { signal: controller.signal };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      try {
        finish(accept());
      } catch (error) {
        put(trouble, error.message);
      }
    }, on);
    form.querySelector('button[value="no"]').addEventListener("click", () => finish(null), on);
    dialog.addEventListener("close", () => finish(null), on);
    put(trouble, "");
    dialog.showModal();
  });
}

let unlocking = null;

/** Ask for the key. Null where somebody rather leaves it. */
export function unlock(text, trouble = "") {
  unlocking ??= (async () => {
    put($("unlock-text"), `${text} The program prints it when it starts, or has it from PENSTOCK_API_KEY. It is kept until this tab is closed.`);
    $("unlock-key").value = "";
    const asked = answered($("unlock"), $("unlock-trouble"), () => $("unlock-key").value.trim() || null);
    put($("unlock-trouble"), trouble);
    const given = await asked;
    if (given) key.set(given);
    showKeyed();
    unlocking = null;
    return given;
  })();
  return unlocking;
}

export function showKeyed() {
  $("keyed").hidden = !key.get();
}

/** Do something that needs the key. Null where nobody gave one. */
async function withKey(act) {
  if (!key.get() && !(await unlock("Orders need the key of the program."))) return null;
  for (;;) {
    try {
      return await act();
    } catch (error) {
      if (!(error instanceof Refused) || (error.status !== 401 && error.status !== 403)) throw error;
      key.forget();
      showKeyed();
      if (!(await unlock("Orders need the key of the program.", error.message))) return null;
    }
  }
}

/** The buttons of a pipeline, and the sentence that came back. */
export class Orders {
  constructor(name, done) {
    this.name = name;
    this.done = done;
    this.buttons = Object.entries(ORDERS).map(([verb, order]) => {
      const button = el("button", { type: "button", "data-verb": verb }, order.word);
      button.addEventListener("click", () => this.ask(verb));
      return button;
    });
    this.answer = el("p.answer", { role: "status" });
    this.node = el("div.orders", { role: "group", "aria-label": "Orders" }, ...this.buttons);
    this.node.hidden = true;
  }

  update(detail) {
    this.node.hidden = !detail.takes_orders;
    this.title = detail.name;
    for (const button of this.buttons) button.disabled = this.isBusy || !ORDERS[button.dataset.verb].when(detail.state);
  }

  async ask(verb) {
    const order = ORDERS[verb];
    put($("ask-title"), order.question);
    put($("ask-text"), `${this.title}: ${order.text[0].toLowerCase()}${order.text.slice(1)}`);
    put($("ask-yes"), order.yes);
    $("ask-more").hidden = verb !== "rewind";
    const choice = $("ask-batch");
    choice.replaceChildren();
    $("ask-new").checked = false;
    const asked = answered($("ask"), $("ask-trouble"), () => {
      if (verb !== "rewind") return {};
      if (!choice.value) throw new Error("Choose a batch first.");
      return { batch: Number(choice.value), ...($("ask-new").checked ? { new_query: true } : {}) };
    });
    if (verb === "rewind") this.offer(choice);
    const body = await asked;
    if (body) await this.give(verb, body);
  }

  /** Fill in the batches of the checkpoint. */
  async offer(choice) {
    choice.append(el("option", { value: "" }, "Reading the checkpoint …"));
    try {
      const batches = await get(`${pathOf(this.name)}/checkpoints`);
      put(choice.options[0], batches.length ? "Choose a batch" : "The checkpoint has no batches yet");
      choice.append(...batches.map((each) => {
        const at = each.planned ? `, ${clock(Date.parse(each.planned) / 1000)}` : "";
        const rows = each.records == null ? "" : `, ${plural(each.records, "row", "rows")}`;
        const fault = each.fault ? `, cannot be used: ${each.fault}` : each.committed ? "" : ", not done";
        const option = el("option", { value: each.batch }, `Batch ${number(each.batch)}${at}${rows}${fault}`);
        option.disabled = Boolean(each.fault);
        return option;
      }));
    } catch (error) {
      put(choice.options[0], "No batches");
      put($("ask-trouble"), error.message);
    }
  }

  async give(verb, body) {
    this.isBusy = true;
    this.say("", "");
    for (const button of this.buttons) button.disabled = true;
    try {
      const answer = await withKey(() => {
        this.say("Waiting for the program …", "");
        return post(`${pathOf(this.name)}/${verb}`, body);
      });
      if (answer === null) this.say("Nothing was changed.", "");
      else this.say(`Done: ${answer.done ?? JSON.stringify(answer)}.`, "good");
    } catch (error) {
      this.say(error instanceof Refused ? error.message : "The program did not answer, so it is not known whether it was done.", "bad");
    }
    this.isBusy = false;
    this.done();
  }

  say(text, tone) {
    put(this.answer, text);
    this.answer.dataset.tone = tone;
  }
}
