// The pack's page side: while a graph renders, each Write Video node plays what exists and says how it goes.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { LivePanel } from "./live/panel.mjs";

const EVENT = "talkinghead.preview";
const NODE = "TalkingHeadWriteVideo";
const SETTING = "TalkingHead.LivePreview";

// A node object is made anew when its workflow is opened again; its panel goes with it.
const panels = new WeakMap();

// "3", or "5:2:3" for a node inside subgraphs.
function findNode(executionId) {
  let graph = app.rootGraph ?? app.graph;
  let node = null;
  for (const id of String(executionId).split(":")) {
    node = graph?.getNodeById(/^\d+$/.test(id) ? Number(id) : id) ?? null;
    graph = node?.subgraph;
  }
  return node?.comfyClass === NODE || node?.type === NODE ? node : null;
}

function onState({ detail: state }) {
  // A workflow that is not open has no nodes here; the next state after it is opened finds them.
  const node = findNode(state.node);
  if (!node || app.extensionManager.setting.get(SETTING) === false) return;
  let panel = panels.get(node);
  if (!panel || panel.closed) {
    if (state.state !== "running") return;
    panel = new LivePanel(node);
    panels.set(node, panel);
  }
  panel.update(state, api.apiURL(`/talkinghead/preview/${state.token}`));
}

app.registerExtension({
  name: "TalkingHead.LivePreview",
  settings: [
    {
      id: SETTING,
      name: "Play a video while it is rendered",
      category: ["Talking Head", "Write Video", "Live preview"],
      tooltip: "Write Video shows a player and the figures of the run. On by default: it costs the render nothing.",
      type: "boolean",
      defaultValue: true,
    },
  ],
  // The first of the hooks: a page that is reloaded during a run gets events soon.
  init() {
    api.addEventListener(EVENT, onState);
  },
});
