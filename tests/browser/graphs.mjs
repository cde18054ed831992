// Opens workflows one after the other in ComfyUI's page, without queueing them. Prints one JSON object: what went wrong in
// the page, and for each workflow its node types, the missing ones, nodes that lie on each other, and the prompt that the
// page would queue (null where it gives none).
//
//   node graphs.mjs --url http://127.0.0.1:8188 --out shots workflow.json ...
import { mkdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { parseArgs } from "node:util";
import { launch, load, newReport, openPage, overlaps } from "./page.mjs";

const options = { url: { type: "string" }, out: { type: "string", default: "out" } };
const { values: args, positionals } = parseArgs({ options, allowPositionals: true });
const report = { ...newReport(), graphs: {} };

mkdirSync(args.out, { recursive: true });
const browser = await launch();
try {
  const page = await openPage(browser.context, args.url, { report, timeout: 120000 });
  for (const path of positionals) {
    const name = basename(path, ".json");
    const before = report.page_errors.length;
    const graph = await load(page, JSON.parse(readFileSync(path, "utf8")));
    graph.overlaps = await page.evaluate(overlaps);
    graph.prompt = (await page.evaluate(() => window.app.graphToPrompt())).output ?? null;
    await page.evaluate(() => window.app.extensionManager.command.execute("Comfy.Canvas.FitView"));
    await page.waitForTimeout(300);
    await page.screenshot({ path: join(args.out, `${name}.png`) });
    graph.page_errors = report.page_errors.slice(before);
    report.graphs[name] = graph;
  }
} catch (e) {
  report.failure = String(e).slice(0, 800);
} finally {
  await browser.close();
}
console.log(JSON.stringify(report, null, 1));
process.exitCode = report.failure ? 1 : 0;
