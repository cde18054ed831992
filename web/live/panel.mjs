// The DOM widget on a Write Video node: a player while the render runs, and the figures of the run.
import { Player } from "./player.mjs";

const PLAYER_HEIGHT = 220;
const TEXT_HEIGHT = 64;
const MARGINS = 24; // what the canvas leaves free around a DOM widget, and the gap below the picture

// What is shown of a state's figures, in this order: [text or null, title].
const FIGURES = [
  [(f) => `frame ${f.frame} of ${f.frames}`, "frames encoded"],
  [(f) => f.fps != null && `${f.fps} fps`, "frames a second since the first one"],
  [(f) => f.realtime != null && `${f.realtime}x real time`, "seconds of video made in a second"],
  [(f) => f.first_frame_s != null && `first frame ${f.first_frame_s} s`, "from the start of Write Video to the first encoded frame"],
  [(f) => f.encoder, "video encoder"],
  [(f) => f.backend, "what runs the networks"],
  [(f) => f.strides && `strides ${f.strides}`, "share of frames computed, interpolated and at rest"],
  [(f) => f.cache && `cache ${f.cache}`, "mouths taken from the viseme cache"],
  [(f) => f.vram_mb != null && `VRAM ${f.vram_mb} MB`, "memory reserved on the card by ComfyUI's process"],
];

function element(tag, style, text = "") {
  const made = document.createElement(tag);
  Object.assign(made.style, style);
  made.textContent = text;
  return made;
}

export class LivePanel {
  closed = false;
  #node;
  #widget;
  #player = null;
  #token = "";
  #root;
  #screen;
  #note;
  #figures;
  #before = null;

  constructor(node) {
    this.#node = node;
    this.#root = element("div", {
      display: "flex", flexDirection: "column", gap: "4px", width: "100%", height: "100%", overflow: "hidden",
      boxSizing: "border-box", font: "11px/1.4 sans-serif", color: "var(--input-text, #ddd)",
    });
    this.#root.dataset.talkinghead = "live-preview";
    this.#screen = element("div", { flex: "1 1 auto", minHeight: "0", display: "none" });
    this.#note = element("div", { flex: "none", display: "none" });
    this.#figures = element("div", { flex: "none", display: "flex", flexWrap: "wrap", gap: "2px 8px", opacity: "0.85" });
    this.#root.append(this.#screen, this.#note, this.#figures);
    this.#widget = node.addDOMWidget("live preview", "talkinghead_live", this.#root, {
      serialize: false,
      hideOnZoom: false,
      getValue: () => "",
      setValue: () => {},
      getMinHeight: () => {
        const text = this.#figures.scrollHeight + this.#note.offsetHeight + MARGINS;
        return (this.#player ? PLAYER_HEIGHT : 0) + Math.max(TEXT_HEIGHT, text);
      },
    });
    this.#widget.serialize = false; // neither in the saved graph nor in the prompt
    const removed = this.#widget.onRemove;
    this.#widget.onRemove = (...args) => {
      removed?.apply(this.#widget, args);
      this.close();
    };
  }

  update(state, base) {
    if (this.closed) return;
    if (state.token !== this.#token) {
      this.#token = state.token;
      this.#stopPlayer();
      this.#say("");
    }
    this.#showFigures(state.figures);
    if (state.problem) this.#say(state.problem);
    if (state.state !== "running") {
      // The finished file is shown by ComfyUI itself.
      this.#stopPlayer();
      if (state.state === "stopped") this.#say("stopped");
    } else if (state.mime && !state.problem) {
      if (!this.#player && !this.#note.textContent) this.#startPlayer(state, base);
      this.#player?.advance(state.first, state.next);
    }
    this.#fit();
  }

  close() {
    this.closed = true;
    this.#stopPlayer();
    this.#root.remove();
  }

  #startPlayer(state, base) {
    this.#player = new Player(base, state.mime, state.seconds, (reason) => {
      this.#stopPlayer();
      this.#say(`no picture: ${reason}`);
      this.#fit();
    });
    if (!this.#player.video) return;
    this.#screen.append(this.#player.video);
    this.#screen.style.display = "block";
  }

  #stopPlayer() {
    this.#player?.close();
    this.#player = null;
    this.#screen.replaceChildren();
    this.#screen.style.display = "none";
  }

  #say(text) {
    this.#note.textContent = text;
    this.#note.style.display = text ? "block" : "none";
  }

  #showFigures(figures) {
    const shown = FIGURES.map(([text, title]) => [text(figures), title]).filter(([text]) => text);
    this.#figures.replaceChildren(...shown.map(([text, title]) => Object.assign(element("span", {}, text), { title })));
  }

  // Makes the node high enough, and gives back what the player took unless the user has chosen a size since.
  #fit() {
    const [width, height] = this.#node.computeSize();
    const [w, h] = this.#node.size;
    if (w < width || h < height) {
      const grown = Math.max(h, height);
      if (this.#player && grown > h) this.#before = { height: Math.max(h, height - PLAYER_HEIGHT), grown };
      this.#node.setSize([Math.max(w, width), grown]);
    } else if (!this.#player && this.#before) {
      if (h === this.#before.grown) this.#node.setSize([w, Math.max(height, this.#before.height)]);
      this.#before = null;
    }
    this.#node.graph?.setDirtyCanvas?.(true, false);
  }
}
