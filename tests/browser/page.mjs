// A headless Chromium with ComfyUI's page open, for the scripts beside this one.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

// What a fresh user folder, or a server of another age than the front end, does not have.
const MAY_BE_ABSENT = /^\/(api\/)?(userdata|user\.css|jobs|global_subgraphs|experiment\/models|templates\/index|node_replacements)/;
const NOISE = /status of 404|accessed before initialization|Content Security Policy|ERR_FAILED|JobsApiError/;

export const newReport = () => ({ console_errors: [], page_errors: [], failed_requests: [], refused_hosts: [] });

// Returns { context, close }. bypassCSP opens pages as a server without --disable-api-nodes gives them.
export async function launch({ bypassCSP = false } = {}) {
  const profile = mkdtempSync(join(tmpdir(), "chromium-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    viewport: { width: 1600, height: 900 },
    bypassCSP,
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", "--mute-audio", "--autoplay-policy=no-user-gesture-required"],
  });
  const close = async () => {
    await context.close();
    rmSync(profile, { recursive: true, force: true });
  };
  return { context, close };
}

// Opens the page with `settings` ("Setting.Id=json") and notes in `report` what goes wrong in it.
export async function openPage(context, url, { report, settings = [], timeout }) {
  const { host } = new URL(url);
  // Nothing outside this machine is to be reached: refuse it at once instead of waiting for it.
  await context.route("**/*", (route) => {
    const url = new URL(route.request().url());
    if (url.host === host || ["data:", "blob:"].includes(url.protocol)) return route.continue();
    if (!report.refused_hosts.includes(url.host)) report.refused_hosts.push(url.host);
    return route.abort();
  });
  const page = context.pages()[0] ?? (await context.newPage());
  page.on("console", (m) => m.type() === "error" && !NOISE.test(m.text()) && report.console_errors.push(m.text().slice(0, 300)));
  page.on("pageerror", (e) => report.page_errors.push(String(e).slice(0, 300)));
  page.on("response", (r) => {
    const { pathname } = new URL(r.url());
    const known = r.status() === 404 && MAY_BE_ABSENT.test(pathname);
    if (r.status() >= 400 && !known) report.failed_requests.push(`${r.status()} ${pathname}`);
  });
  // A new user is shown templates and a tutorial; settings are the server's, so they are set there first.
  for (const pair of ["Comfy.TutorialCompleted=true", "Comfy.Minimap.Visible=false", ...settings]) {
    const [id, body] = pair.split(/=(.*)/s);
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(`${url}/api/settings/${id}`, { method: "POST", body, headers });
    if (!answer.ok) report.page_errors.push(`setting ${id}: ${answer.status}`);
  }
  await page.goto(url, { waitUntil: "domcontentloaded", timeout });
  await page.waitForFunction(() => window.app?.graph && window.app?.extensionManager && window.app?.ui, null, { timeout });
  await page.waitForTimeout(1500);
  await page.keyboard.press("Escape");
  return page;
}

// Loads a workflow in UI or API format with the page's own loader; returns its nodes' types and those nobody registered.
export async function load(page, workflow) {
  return page.evaluate(async ([data, ui]) => {
    const { app, LiteGraph } = window;
    if (ui) await app.loadGraphData(data, true, true, "smoke");
    else app.loadApiJson(data, "smoke");
    await new Promise((r) => setTimeout(r, 800));
    const types = (app.graph.nodes ?? app.graph._nodes).map((n) => n.type);
    return { types, missing: types.filter((t) => !(t in LiteGraph.registered_node_types)) };
  }, [workflow, Array.isArray(workflow.nodes)]);
}

// Runs in the page: pairs of nodes that lie on each other as the page drew them, where a node that was too small has grown.
export function overlaps() {
  const { app, LiteGraph } = window;
  const nodes = app.graph.nodes ?? app.graph._nodes;
  const box = ({ pos: [x, y], size: [w, h] }) => [x, y - LiteGraph.NODE_TITLE_HEIGHT, x + w, y + h];
  const meet = (p, q) => p[0] < q[2] && q[0] < p[2] && p[1] < q[3] && q[1] < p[3];
  return nodes.flatMap((a, i) => nodes.slice(0, i).filter((b) => meet(box(a), box(b)))
    .map((b) => `${b.id} ${b.type} / ${a.id} ${a.type}`));
}
