// Runs the browser client of web/docs/live_server.md in a headless Chromium whose microphone is a file, waits until its
// <video> has played, takes a picture and ends the session. Prints one JSON object.
//
//   node live_session.mjs --url http://127.0.0.1:8188 --page live_server.md --sound speech.wav --out shot.png
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";

const { values: args } = parseArgs({
  options: { url: { type: "string" }, page: { type: "string" }, sound: { type: "string" }, out: { type: "string" } },
});
const [, code] = readFileSync(args.page, "utf8").match(/```js\n([^]*?)```/);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    `--use-file-for-fake-audio-capture=${args.sound}`,
    "--autoplay-policy=no-user-gesture-required",
  ],
});
try {
  // The server of the tests forbids blob: media, which MediaSource needs (--disable-api-nodes).
  const context = await browser.newContext({ bypassCSP: true, permissions: ["microphone"] });
  const page = await context.newPage();
  const said = [];
  page.on("console", (m) => said.push(m.text()));
  page.on("pageerror", (e) => said.push(String(e)));
  // Any small answer of the server is a page of its origin.
  await page.goto(`${args.url}/system_stats`);
  await page.evaluate(async (text) => {
    document.body.innerHTML = "<video muted playsinline></video>";
    const talk = (0, eval)(`(${text})`);
    window.stop = await talk(document.querySelector("video"), "demo");
  }, code);
  await page.waitForFunction(() => document.querySelector("video").currentTime > 0.4, null, { timeout: 90000 });
  const report = await page.evaluate(async () => {
    const video = document.querySelector("video");
    window.stop();
    const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
    const pencil = canvas.getContext("2d");
    pencil.drawImage(video, 0, 0);
    const { data } = pencil.getImageData(0, 0, canvas.width, canvas.height);
    const light = data.reduce((sum, value) => sum + value, 0) / data.length;
    return { width: video.videoWidth, height: video.videoHeight, at: video.currentTime, ready: video.readyState, light };
  });
  await page.locator("video").screenshot({ path: args.out });
  console.log(JSON.stringify({ ...report, said }));
} finally {
  await browser.close();
}
