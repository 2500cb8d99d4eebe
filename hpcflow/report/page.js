"use strict";
// Zooms (drag; double click: back) and smooths the curves of each chart. Nothing here writes HTML.
const WIDTH = 640, HEIGHT = 260, LEFT = 84, RIGHT = 12, TOP = 10, BOTTOM = 34;
const SVG = "http://www.w3.org/2000/svg";

function ticks(low, high) {
  const span = high - low;
  if (!(span > 0)) return [low];
  let step = 10 ** Math.floor(Math.log10(span / 5));
  step *= [1, 2, 5].find((m) => span / (step * m) <= 5) ?? 10;
  const all = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) all.push(i * step);
  return all;
}

function text(value) {
  const size = Math.abs(value);
  return value && (size >= 1e6 || size < 1e-3) ? value.toPrecision(3) : String(+value.toPrecision(4));
}

function smoothed(ys, share) {
  if (!share) return ys;
  const result = [];
  let mean = ys[0];
  for (const y of ys) { mean = share * mean + (1 - share) * y; result.push(mean); }
  return result;
}

class Chart {
  constructor(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    this.svg = figure.querySelector("svg");
    this.whole = data.box; this.box = data.box.slice(); this.series = data.series;
    this.curves = [...figure.querySelectorAll(".curve")];
    this.dots = figure.querySelectorAll(".dot").length > 0;
    this.share = 0;
    let from = null;
    this.svg.addEventListener("pointerdown", (event) => { from = this.at(event); this.svg.setPointerCapture(event.pointerId); });
    this.svg.addEventListener("pointerup", (event) => {
      const to = this.at(event);
      if (from !== null && Math.abs(to - from) > (this.box[1] - this.box[0]) / 50) this.zoom(Math.min(from, to), Math.max(from, to));
      from = null;
    });
    this.svg.addEventListener("dblclick", () => { this.box = this.whole.slice(); this.draw(); });
  }
  at(event) {
    const frame = this.svg.getBoundingClientRect();
    const place = ((event.clientX - frame.left) / frame.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    return this.box[0] + Math.min(1, Math.max(0, place)) * (this.box[1] - this.box[0]);
  }
  zoom(low, high) {
    let least = Infinity, most = -Infinity;
    for (const [xs, ys] of this.series) xs.forEach((x, i) => {
      if (x >= low && x <= high) { least = Math.min(least, ys[i]); most = Math.max(most, ys[i]); }
    });
    if (least > most) return;
    const pad = (most - least) * 0.05 || Math.abs(most) * 0.1 || 1;
    this.box = [low, high, least - pad, most + pad];
    this.draw();
  }
  draw() {
    const [left, right, low, high] = this.box;
    const px = (x) => LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT);
    const py = (y) => HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
    this.series.forEach(([xs, ys], k) => {
      const values = smoothed(ys, this.share), points = [];
      xs.forEach((x, i) => { if (x >= left && x <= right) points.push(px(x).toFixed(1) + " " + py(values[i]).toFixed(1)); });
      this.curves[k].setAttribute("d", points.length ? "M" + points.join("L") : "");
    });
    for (const dot of this.svg.querySelectorAll(".dot")) dot.style.display = left > this.whole[0] || right < this.whole[1] ? "none" : "";
    const axes = this.svg.querySelector(".axes");
    for (const old of [...axes.querySelectorAll("line, .x-tick, .y-tick")]) old.remove();
    const add = (name, attributes, content) => {
      const node = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      if (content !== undefined) node.textContent = content;
      axes.append(node);
    };
    for (const value of ticks(left, right)) add("text", { x: px(value), y: HEIGHT - BOTTOM + 16, class: "x-tick" }, text(value));
    for (const value of ticks(low, high)) {
      add("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: py(value), y2: py(value) });
      add("text", { x: LEFT - 6, y: py(value) + 4, class: "y-tick" }, text(value));
    }
  }
}

const charts = [...document.querySelectorAll("figure.chart")].map((figure) => new Chart(figure));
for (const smooth of document.querySelectorAll(".smooth")) smooth.addEventListener("input", () => {
  for (const chart of charts) { chart.share = Number(smooth.value) / 100; chart.draw(); }
});
