"use strict";
// Zooms (drag; double click: back) and smooths the curves of each chart. A legend of several curves shows the
// curves of a name, and gives them a colour or takes it away. Nothing here writes HTML.
const WIDTH = 640, HEIGHT = 260, LEFT = 84, RIGHT = 12, TOP = 10, BOTTOM = 34, COLORS = 8;
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

// The charts of a grid, such as those of the same runs: a group of curves looks the same in all of them.
class Legend {
  constructor(grid) {
    const items = [...grid.querySelectorAll(".chart .legend li")];
    this.grid = grid;
    this.colored = [];  // [group, number of its colour]; the last is on top, the first loses its colour first
    for (const { dataset: { group } } of items) {
      const known = this.colored.some(([other]) => other === group);
      if (!known && Number(group) < COLORS) this.colored.unshift([group, Number(group)]);
    }
    for (const item of items) {
      const button = document.createElement("button"), group = item.dataset.group;
      button.type = "button";
      button.append(...item.childNodes);
      item.append(button);
      for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => { this.light(group); this.raise(group); });
      for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => this.light(null));
      button.addEventListener("click", () => { this.choose(group); this.paint(); });
    }
    for (const node of grid.querySelectorAll(".plot g")) {
      node.addEventListener("pointerenter", () => this.light(node.dataset.group));
      node.addEventListener("pointerleave", () => this.light(null));
    }
    this.paint();
  }
  light(group) {
    for (const plot of this.grid.querySelectorAll(".plot")) plot.classList.toggle("dim", group !== null);
    for (const node of this.grid.querySelectorAll("[data-group]")) {
      const lit = node.dataset.group === group;
      for (const part of [node, ...node.children]) part.classList.toggle("lit", lit);
    }
  }
  raise(group) {
    for (const node of this.grid.querySelectorAll(".plot g")) if (node.dataset.group === group) node.parentNode.append(node);
  }
  choose(group) {
    const at = this.colored.findIndex(([other]) => other === group);
    if (at >= 0) { this.colored.splice(at, 1); return; }
    const free = [...Array(COLORS).keys()].find((k) => this.colored.every(([, color]) => color !== k));
    this.colored.push([group, free ?? this.colored.shift()[1]]);
  }
  paint() {
    const colors = new Map(this.colored);
    for (const node of this.grid.querySelectorAll("[data-group]")) {
      const color = colors.get(node.dataset.group), name = color === undefined ? "other" : "c" + color;
      node.querySelector("button")?.setAttribute("aria-pressed", String(color !== undefined));
      for (const part of node.querySelectorAll(".curve, .dot, .swatch")) {
        part.classList.remove("other", ...Array.from({ length: COLORS }, (_, k) => "c" + k));
        part.classList.add(name);
      }
    }
    for (const [group] of this.colored) this.raise(group);
  }
}

const charts = [...document.querySelectorAll("figure.chart")].map((figure) => new Chart(figure));
for (const grid of document.querySelectorAll(".grid:has(.chart li + li)")) new Legend(grid);
for (const smooth of document.querySelectorAll(".smooth")) smooth.addEventListener("input", () => {
  for (const chart of charts) { chart.share = Number(smooth.value) / 100; chart.draw(); }
});
