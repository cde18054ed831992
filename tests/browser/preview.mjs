// Runs a graph from ComfyUI's page and watches what its Write Video node plays meanwhile: in the classic canvas, in
// Nodes 2.0, and where MediaSource may not be used. Prints one JSON object: scenario -> what was seen; screenshots are
// OUT/<scenario>.png and OUT/<scenario>-done.png. Exit code 0 if the script itself came through.
//
//   node preview.mjs --url http://127.0.0.1:8188 --workflow prompt_api.json --out shots [--timeout 60]
//
// The prompt is in API format: node 1 has `samples` at 24 kHz, for each run other ones, so that nothing is cached; node 3
// is Write Video; the frames are the stub engine's, which say their number in 16 bars.
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { launch, newReport, openPage } from "./page.mjs";

const { values: args } = parseArgs({
  options: {
    url: { type: "string" },
    workflow: { type: "string" },
    out: { type: "string", default: "out" },
    timeout: { type: "string", default: "60" },
  },
});
const timeout = Number(args.timeout) * 1000;
const report = newReport();
let count = 0;

// Runs in the page: what the live preview shows, or null as long as nothing plays. Goes to the middle of frame 5 if it
// can, reads the number in the picture, and plays on.
async function look(atLeast) {
  const panels = document.querySelectorAll('[data-talkinghead="live-preview"]');
  const video = panels[0]?.querySelector("video");
  if (!video || video.readyState < 2 || video.currentTime < atLeast) return null;
  const seen = {
    panels: panels.length, time: video.currentTime, paused: video.paused, muted: video.muted, width: video.videoWidth,
    height: video.videoHeight, source: new URL(video.currentSrc).protocol, text: panels[0].innerText,
    shown: video.getBoundingClientRect().height > 50,
  };
  const canSeek = seen.source === "blob:"; // the endless answer of the server has no way back
  if (canSeek) {
    video.pause();
    const sought = new Promise((r) => { video.addEventListener("seeked", r, { once: true }); setTimeout(r, 5000); });
    video.currentTime = 5.5 / 25;
    await sought;
  }
  const canvas = Object.assign(document.createElement("canvas"), { width: 160, height: 160 });
  const context = canvas.getContext("2d");
  context.drawImage(video, 0, 0, 160, 160);
  seen.number = 0;
  for (let bit = 0; bit < 16; bit++) {
    if (context.getImageData(bit * 10 + 5, 20, 1, 1).data[1] > 127) seen.number |= 1 << bit;
  }
  await video.play();
  return seen;
}

// Runs in the page: what is left when the run is over.
function leftOver() {
  const panels = [...document.querySelectorAll('[data-talkinghead="live-preview"]')];
  return {
    panels: panels.length,
    players: panels.filter((p) => p.querySelector("video")).length,
    text: panels.map((p) => p.innerText),
    films: [...document.querySelectorAll("video")].map((v) => v.currentSrc.replace(/&rand.*/, "")).filter((s) => s.includes("/view")).length,
    saved: (app.graph.serialize().nodes.find((n) => n.type === "TalkingHeadWriteVideo") ?? {}).widgets_values ?? null,
  };
}

// Queues the graph with `seconds` of sound, looks until the preview plays, then does what `meanwhile` asks; `stop`
// interrupts the run after that.
async function run(page, name, { seconds, stop = false, meanwhile = async () => {} }) {
  const seen = {};
  let over = false;
  const end = page.evaluate(async ([samples, ms]) => {
    const { app } = window;
    app.graph.getNodeById(1).widgets.find((w) => w.name === "samples").value = samples;
    const over = new Promise((resolve) => {
      for (const status of ["success", "error", "interrupted"]) {
        app.api.addEventListener(`execution_${status}`, () => resolve(status), { once: true });
      }
      setTimeout(() => resolve("timeout"), ms);
    });
    await app.queuePrompt(0, 1);
    return over;
  }, [seconds * 24000 + (count += 960), timeout]);
  const note = () => { over = true; };
  end.then(note, note);
  const watch = async (atLeast) => {
    while (!over) {
      const found = await page.evaluate(look, atLeast);
      if (found) return found;
      await page.waitForTimeout(50);
    }
    return null;
  };
  seen.playing = await watch(0.4);
  await page.screenshot({ path: join(args.out, `${name}.png`) });
  Object.assign(seen, await meanwhile(watch));
  if (stop) await page.evaluate(() => app.api.interrupt());
  seen.status = await end;
  await page.waitForTimeout(300);
  seen.after = await page.evaluate(leftOver);
  await page.screenshot({ path: join(args.out, `${name}-done.png`) });
  report[name] = seen;
}

const setting = (page, id, value) => page.evaluate(([i, v]) => app.extensionManager.setting.set(i, v), [id, value]);
const fit = (page) => page.evaluate(() => app.extensionManager.command.execute("Comfy.Canvas.FitView"));

async function scenarios(page) {
  await page.evaluate((data) => app.loadApiJson(data, "preview"), JSON.parse(readFileSync(args.workflow, "utf8")));
  await page.waitForTimeout(300);
  await fit(page);
  // The workflow is opened anew while it runs, as after a change of tabs: the next event finds the new node.
  const reopen = async (watch) => {
    await page.evaluate(() => {
      document.querySelector('[data-talkinghead="live-preview"] video').dataset.old = "yes";
      return app.loadGraphData(app.graph.serialize(), true, true, app.extensionManager.workflow.activeWorkflow);
    });
    const reopened = await watch(0.1);
    return { reopened, oldPlayers: await page.evaluate(() => document.querySelectorAll("video[data-old]").length) };
  };
  await run(page, "classic", { seconds: 20, stop: true, meanwhile: reopen });
  await setting(page, "Comfy.VueNodes.Enabled", true);
  await page.waitForTimeout(300);
  await fit(page);
  await run(page, "nodes2", { seconds: 6 });
  await setting(page, "Comfy.VueNodes.Enabled", false);
  // The node is deleted while its preview plays; the run goes on.
  await page.evaluate(() => { window.MediaSource = undefined; });
  const remove = async () => {
    await page.evaluate(() => app.graph.remove(app.graph.getNodeById(3)));
    await page.waitForTimeout(300);
    return { removed: await page.evaluate(leftOver) };
  };
  await run(page, "stream", { seconds: 20, stop: true, meanwhile: remove });
}

mkdirSync(args.out, { recursive: true });
const browser = await launch({ bypassCSP: true });
try {
  await scenarios(await openPage(browser.context, args.url, { report, settings: ["Comfy.VueNodes.Enabled=false"], timeout }));
} catch (e) {
  report.failure = String(e).slice(0, 800);
} finally {
  await browser.close();
}
console.log(JSON.stringify(report, null, 1));
process.exitCode = report.failure ? 1 : 0;
