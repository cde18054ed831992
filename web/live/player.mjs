// A <video> of a render that goes on: segments through MediaSource, or one endless answer of the server where that may
// not be used. ComfyUI's page forbids blob: addresses to media with --disable-api-nodes (its Content-Security-Policy has
// no media-src), and Chromium holds a MediaSourceHandle from a worker to the same rule.
import { Feeder } from "./feeder.mjs";

const EDGE_S = 0.1;

export class Player {
  video = null;
  #base;
  #fail;
  #feeder = null;
  #opened = false;
  #url = "";
  #closed = false;

  // base: address of the run; mime: with codecs; seconds: length of the finished video; fail(reason): at most once.
  constructor(base, mime, seconds, fail) {
    this.#base = base;
    this.#fail = (reason) => {
      if (this.#closed) return;
      this.close();
      fail(reason);
    };
    const video = this.#makeVideo();
    const canFeed = Boolean(globalThis.MediaSource?.isTypeSupported(mime));
    if (!canFeed && !video.canPlayType(mime)) {
      return void queueMicrotask(() => this.#fail(`this browser does not play ${mime}`));
    }
    this.video = video;
    if (canFeed) this.#feed(mime, seconds);
    else this.#stream();
  }

  // Segments first..next-1 can be fetched.
  advance(first, next) {
    if (!this.#closed) this.#feeder?.advance(first, next);
  }

  close() {
    if (this.#closed) return;
    this.#closed = true;
    this.#stopFeeding();
    if (!this.video) return;
    this.video.pause();
    this.video.removeAttribute("src");
    this.video.load(); // lets go of the decoder and of the connection
  }

  #makeVideo() {
    const video = document.createElement("video");
    // Muted, or browsers refuse to start it by itself.
    Object.assign(video, { muted: true, autoplay: true, controls: true, playsInline: true });
    Object.assign(video.style, { width: "100%", height: "100%", objectFit: "contain", maxHeight: "480px", background: "#000", display: "block" });
    for (const event of ["waiting", "seeking", "progress", "stalled"]) video.addEventListener(event, () => this.#intoBuffer());
    // autoplay waits until the rest is sure to arrive in time, which an unfinished render never is.
    video.addEventListener("canplay", () => video.play().catch(() => {}), { once: true });
    video.addEventListener("timeupdate", () => this.#feeder?.playing(video.currentTime));
    video.addEventListener("error", () => {
      if (this.#feeder && !this.#opened) return this.#stream();
      this.#fail(video.error?.message || `media error ${video.error?.code}`);
    });
    return video;
  }

  // Playback that stands where there is nothing goes to what there is: the oldest part is gone, or was sought.
  #intoBuffer() {
    const { buffered, currentTime, seeking } = this.video;
    if (this.#closed || !buffered.length) return;
    for (let i = 0; i < buffered.length; i++) {
      if (currentTime < buffered.start(i)) return void (this.video.currentTime = buffered.start(i));
      if (currentTime <= buffered.end(i) + EDGE_S) return;
    }
    if (seeking) this.video.currentTime = Math.max(0, buffered.end(buffered.length - 1) - EDGE_S);
  }

  #feed(mime, seconds) {
    const source = new MediaSource();
    source.addEventListener("sourceopen", () => { this.#opened = true; }, { once: true });
    this.#feeder = new Feeder(source, { base: this.#base, mime, seconds }, this.#fail);
    this.#url = URL.createObjectURL(source);
    this.video.src = this.#url;
  }

  #stopFeeding() {
    this.#feeder?.close();
    this.#feeder = null;
    if (this.#url) URL.revokeObjectURL(this.#url);
    this.#url = "";
  }

  #stream() {
    this.#stopFeeding();
    this.video.src = `${this.#base}/stream`;
  }
}
