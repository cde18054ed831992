// Fetches segments and appends them to a MediaSource, in a page or in a worker.

const KEEP_BEHIND_S = 10; // of what was played, when room is needed
const AT_LEAST_S = 1; // shorter removals are not worth it

export class Feeder {
  #source;
  #options;
  #fail;
  #abort = new AbortController();
  #open;
  #buffer = null;
  #have = 0;
  #wanted = 0;
  #busy = false;
  #time = 0;
  #room = null;

  // options: base (address of the run), mime, seconds (length, 0 if not known).
  constructor(source, options, fail) {
    this.#source = source;
    this.#options = options;
    this.#fail = fail;
    this.#open = new Promise((done) => source.addEventListener("sourceopen", done, { once: true }));
  }

  advance(first, next) {
    this.#have = Math.max(this.#have, first);
    this.#wanted = next;
    if (!this.#busy) this.#run();
  }

  // Where the player stands, in seconds: what lies behind may go.
  playing(time) {
    this.#time = time;
    this.#room?.();
  }

  close() {
    this.#abort.abort();
    this.#room?.();
  }

  get #closed() {
    return this.#abort.signal.aborted;
  }

  async #run() {
    this.#busy = true;
    try {
      await this.#open;
      if (!this.#buffer) await this.#begin();
      while (this.#buffer && this.#have < this.#wanted && !this.#closed) await this.#step();
    } catch (e) {
      if (!this.#closed) this.#fail(e.message ?? String(e));
    } finally {
      this.#busy = false;
    }
  }

  // Returns null for 204: there is nothing, or nothing any more.
  async #get(path) {
    const answer = await fetch(`${this.#options.base}/${path}`, { signal: this.#abort.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    return answer.status === 204 ? null : answer;
  }

  async #begin() {
    const answer = await this.#get("init");
    if (!answer) return;
    this.#buffer = this.#source.addSourceBuffer(this.#options.mime);
    if (this.#options.seconds > 0) this.#source.duration = this.#options.seconds;
    await this.#append(await answer.arrayBuffer());
  }

  async #step() {
    const answer = await this.#get(`segments?from=${this.#have}`);
    if (!answer) {
      this.#wanted = this.#have;
      return;
    }
    await this.#append(await answer.arrayBuffer());
    this.#have = Number(answer.headers.get("X-Next"));
  }

  async #append(data) {
    for (;;) {
      if (this.#closed) return;
      try {
        return await this.#change((buffer) => buffer.appendBuffer(data));
      } catch (e) {
        if (e.name !== "QuotaExceededError") throw e;
        await this.#makeRoom();
      }
    }
  }

  // Removes what was played; waits for the player to go on if that is too little.
  async #makeRoom() {
    for (;;) {
      if (this.#closed) return;
      const { buffered } = this.#buffer;
      const end = this.#time - KEEP_BEHIND_S;
      if (buffered.length && end - buffered.start(0) >= AT_LEAST_S) {
        return void (await this.#change((buffer) => buffer.remove(buffered.start(0), end)));
      }
      await new Promise((done) => (this.#room = done));
      this.#room = null;
    }
  }

  #change(action) {
    const buffer = this.#buffer;
    return new Promise((done, failed) => {
      const error = () => failed(new Error("the browser could not read a segment"));
      buffer.addEventListener("error", error, { once: true });
      buffer.addEventListener("updateend", () => (buffer.removeEventListener("error", error), done()), { once: true });
      action(buffer);
    });
  }
}
