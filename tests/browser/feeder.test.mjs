// web/live/feeder.mjs against a fake MediaSource and a fake server; run by test_preview.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Feeder } from "../../web/live/feeder.mjs";

const SECOND = 1; // of video in a fake segment

class FakeBuffer extends EventTarget {
  constructor(limit) {
    super();
    Object.assign(this, { limit, parts: [], removed: [], start: 0, end: 0, broken: false });
  }
  get buffered() {
    return { length: this.end > this.start ? 1 : 0, start: () => this.start, end: () => this.end };
  }
  appendBuffer(data) {
    const numbers = [...new Uint8Array(data)];
    if (this.end + numbers.length - this.start > this.limit) {
      throw Object.assign(new Error("full"), { name: "QuotaExceededError" });
    }
    this.parts.push(...numbers);
    if (numbers[0] !== 255) {
      if (this.end === this.start) this.start = this.end = numbers[0] * SECOND;
      this.end += numbers.length * SECOND;
    }
    queueMicrotask(() => this.dispatchEvent(new Event(this.broken ? "error" : "updateend")));
  }
  remove(start, end) {
    this.removed.push([start, end]);
    this.start = end;
    queueMicrotask(() => this.dispatchEvent(new Event("updateend")));
  }
}

class FakeSource extends EventTarget {
  constructor(limit = 1000) {
    super();
    this.buffer = new FakeBuffer(limit);
    queueMicrotask(() => this.dispatchEvent(new Event("sourceopen")));
  }
  addSourceBuffer(mime) {
    this.mime = mime;
    return this.buffer;
  }
}

// Segment n is one byte n; init is 255. Two segments an answer, as a server with a limit gives them.
function serve({ first = 0, next, status = 200 }) {
  const asked = [];
  const server = { asked, first, next, status };
  globalThis.fetch = async (address) => {
    asked.push(address);
    if (server.status !== 200) return new Response(null, { status: server.status });
    if (address.endsWith("/init")) return new Response(new Uint8Array([255]));
    const from = Math.max(server.first, Number(address.split("from=")[1]));
    const to = Math.min(server.next, from + 2);
    if (from >= to) return new Response(null, { status: 204 });
    const body = Uint8Array.from({ length: to - from }, (_, i) => from + i);
    return new Response(body, { headers: { "X-First": String(from), "X-Next": String(to) } });
  };
  return server;
}

const settle = () => new Promise((done) => setTimeout(done, 5));
const options = { base: "/run", mime: 'video/mp4; codecs="avc1.640020"', seconds: 60 };

test("init and segments once each, in order, as they come", async () => {
  const server = serve({ next: 3 });
  const source = new FakeSource();
  const feeder = new Feeder(source, options, assert.fail);
  feeder.advance(0, 3);
  await settle();
  assert.deepEqual(source.buffer.parts, [255, 0, 1, 2]);
  server.next = 8;
  for (let n = 4; n <= 8; n++) feeder.advance(0, n);
  await settle();
  assert.deepEqual(source.buffer.parts, [255, 0, 1, 2, 3, 4, 5, 6, 7]);
  assert.equal(server.asked.filter((a) => a.endsWith("/init")).length, 1);
  assert.equal(source.duration, 60);
  assert.equal(source.mime, options.mime);
});

test("a page that comes late starts at the oldest segment there is", async () => {
  serve({ first: 7, next: 10 });
  const source = new FakeSource();
  new Feeder(source, options, assert.fail).advance(7, 10);
  await settle();
  assert.deepEqual(source.buffer.parts, [255, 7, 8, 9]);
});

test("a full buffer loses what was played, and waits for the player if that is too little", async () => {
  serve({ next: 40 });
  const source = new FakeSource(20);
  const feeder = new Feeder(source, options, assert.fail);
  feeder.advance(0, 40);
  await settle();
  assert.equal(source.buffer.end, 20);
  assert.deepEqual(source.buffer.removed, [], "nothing was played yet");
  feeder.playing(14);
  await settle();
  assert.deepEqual(source.buffer.removed, [[0, 4]]);
  assert.equal(source.buffer.end, 24);
  for (let time = 15; time <= 40; time++) {
    feeder.playing(time);
    await settle();
  }
  assert.deepEqual(source.buffer.parts, [255, ...Array(40).keys()], "nothing was lost or doubled");
});

test("a run that ended is no error", async () => {
  const server = serve({ next: 4 });
  const source = new FakeSource();
  const feeder = new Feeder(source, options, assert.fail);
  feeder.advance(0, 4);
  await settle();
  server.status = 204;
  feeder.advance(0, 6);
  await settle();
  assert.deepEqual(source.buffer.parts, [255, 0, 1, 2, 3]);
});

test("a refusal and a segment that cannot be read are told", async () => {
  const problems = [];
  serve({ next: 4, status: 403 });
  new Feeder(new FakeSource(), options, (p) => problems.push(p)).advance(0, 4);
  await settle();
  serve({ next: 4 });
  const source = new FakeSource();
  source.buffer.broken = true;
  new Feeder(source, options, (p) => problems.push(p)).advance(0, 4);
  await settle();
  assert.deepEqual(problems, ["the server answered 403", "the browser could not read a segment"]);
});

test("after close nothing is fetched or appended, also not by one that waits for room", async () => {
  const server = serve({ next: 40 });
  const source = new FakeSource(20);
  const feeder = new Feeder(source, options, assert.fail);
  feeder.advance(0, 40);
  await settle();
  const asked = server.asked.length;
  feeder.close();
  feeder.playing(30);
  feeder.advance(0, 50);
  await settle();
  assert.equal(server.asked.length, asked);
  assert.equal(source.buffer.end, 20);
});
