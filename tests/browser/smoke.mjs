// Opens ComfyUI's page in a headless Chromium, loads a workflow, queues it from the page, waits for the
// end and takes screenshots. Prints one JSON object; exit code 0 only if nothing was missing and the run
// (if there was one) ended in success.
//
//   node smoke.mjs --url http://127.0.0.1:8188 --workflow workflow.json --out shots
//        [--no-queue] [--api-to-ui out.json] [--eval "expression"] [--set Setting.Id=json] [--timeout 120]
//
// The workflow may be in UI or API format: the page's own loaders read both. OUT/prompt_api.json is what
// the page would queue, OUT/workflow_ui.json what it would save; --api-to-ui arranges an API workflow's
// nodes and saves it in UI format. The browser is $CHROMIUM or /usr/bin/chromium.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { launch, load, newReport, openPage, overlaps } from "./page.mjs";

const { values: args } = parseArgs({
  options: {
    url: { type: "string" },
    workflow: { type: "string" },
    out: { type: "string", default: "out" },
    "no-queue": { type: "boolean", default: false },
    "api-to-ui": { type: "string" },
    eval: { type: "string" },
    set: { type: "string", multiple: true, default: [] },
    timeout: { type: "string", default: "120" },
  },
});
const timeout = Number(args.timeout) * 1000;
const report = newReport();

async function loadWorkflow(page) {
  const workflow = JSON.parse(readFileSync(args.workflow, "utf8"));
  const isUi = Array.isArray(workflow.nodes);
  report.load = await load(page, workflow);
  if (args["api-to-ui"]) {
    await page.evaluate((ui) => {
      const { graph } = window.app;
      if (!ui) graph.arrange?.();
      // a prompt's numbers are fixed; the page would draw a new seed after every run
      for (const widget of (graph.nodes ?? graph._nodes).flatMap((n) => n.widgets ?? [])) {
        if (widget.name === "control_after_generate") widget.value = "fixed";
      }
    }, isUi);
    const saved = await page.evaluate(() => window.app.graph.serialize());
    writeFileSync(args["api-to-ui"], JSON.stringify(saved, null, 2) + "\n");
  }
  report.overlaps = await page.evaluate(overlaps);
  // players exist only for nodes in view
  await page.evaluate(() => window.app.extensionManager.command.execute("Comfy.Canvas.FitView"));
  await page.waitForTimeout(800);
  const prompt = await page.evaluate(() => window.app.graphToPrompt());
  writeFileSync(join(args.out, "prompt_api.json"), JSON.stringify(prompt.output, null, 2) + "\n");
  writeFileSync(join(args.out, "workflow_ui.json"), JSON.stringify(prompt.workflow, null, 2) + "\n");
  await page.screenshot({ path: join(args.out, "loaded.png") });
}

async function queueWorkflow(page) {
  report.run = await page.evaluate(async (ms) => {
    const { app } = window;
    const { api } = app;
    const seen = {};
    for (const type of ["executing", "executed", "progress", "progress_state", "b_preview",
      "b_preview_with_metadata", "progress_text", "execution_cached"]) {
      api.addEventListener(type, () => { seen[type] = (seen[type] ?? 0) + 1; });
    }
    const end = new Promise((resolve) => {
      for (const status of ["success", "error", "interrupted"]) {
        api.addEventListener(`execution_${status}`, (e) => resolve({ status, message: e.detail?.exception_message }));
      }
      setTimeout(() => resolve({ status: "timeout" }), ms);
    });
    const began = performance.now();
    await app.queuePrompt(0, 1);
    if (Object.keys(app.lastNodeErrors ?? {}).length) return { status: "rejected", errors: app.lastNodeErrors };
    return { ...(await end), ms: Math.round(performance.now() - began), seen };
  }, timeout);
  report.media = await page.evaluate(showMedia);
  report.overlaps = await page.evaluate(overlaps); // what a node shows makes it larger
  await page.screenshot({ path: join(args.out, "done.png") });
}

// Runs in the page: brings every player to one second and says what it shows there; `light` is the mean of
// a video's pixels, 0..255.
async function showMedia() {
  const wait = (ms) => new Promise((r) => setTimeout(r, ms));
  const source = (m) => (m.currentSrc || m.src || "").replace(location.origin, "");
  const found = () => [...document.querySelectorAll("video,audio,img")].filter((m) => source(m).includes("/view"));
  const loaded = (m) => (m.tagName === "IMG" ? m.complete : m.readyState >= 2);
  await wait(1000);
  for (let i = 0; i < 100 && !found().every(loaded); i++) await wait(100);
  const report = [];
  for (const m of found()) {
    const item = { tag: m.tagName.toLowerCase(), src: source(m), loaded: loaded(m), seconds: m.duration ?? null };
    if (item.tag === "video") {
      const seeked = new Promise((r) => m.addEventListener("seeked", r, { once: true }));
      m.pause();
      m.currentTime = Math.min(1, m.duration / 2);
      await Promise.race([seeked, wait(10000)]);
      const canvas = Object.assign(document.createElement("canvas"), { width: 32, height: 32 });
      const context = canvas.getContext("2d");
      context.drawImage(m, 0, 0, 32, 32);
      const pixels = context.getImageData(0, 0, 32, 32).data;
      let sum = 0;
      for (let i = 0; i < pixels.length; i += 4) sum += pixels[i] + pixels[i + 1] + pixels[i + 2];
      Object.assign(item, { width: m.videoWidth, height: m.videoHeight, at: m.currentTime, light: sum / (32 * 32 * 3) });
    }
    report.push(item);
  }
  await wait(500); // the frame gets onto the screen
  return report;
}

mkdirSync(args.out, { recursive: true });
const browser = await launch();
try {
  const page = await openPage(browser.context, args.url, { report, settings: args.set, timeout });
  if (args.workflow) {
    await loadWorkflow(page);
    if (!args["no-queue"]) await queueWorkflow(page);
  }
  if (args.eval) report.eval = await page.evaluate(args.eval);
} catch (e) {
  report.failure = String(e).slice(0, 800);
} finally {
  await browser.close();
}
console.log(JSON.stringify(report, null, 1));
const ran = !report.run || report.run.status === "success";
process.exitCode = !report.failure && !report.load?.missing.length && ran ? 0 : 1;
