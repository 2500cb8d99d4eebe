"use strict";
// Draws a plan: boxes in lines, edges over them; a click opens and closes a group. Nothing here writes HTML.
// The lines and lanes are those of plan_layout.py, the places of labels those of plan_labels.py, the words those of
// plan_facts.py.
const PER_LINE = 5, LANE = 11, LABEL = 58, PAD = 12, PORT = 26, CORNER = 6, MOST_LABELS = 120, GAP = 4, ASCENT = 10, DESCENT = 3, HEADER = 26, MOST_LISTED = 6;
const CENTERED = 4, BELOW = 12, ABOVE = -4, STEEP = 8;
const ALONG_CURVE = [0.5, 0.35, 0.65, 0.25, 0.75], ALONG_LANE = [0.5, 0.38, 0.62, 0.26, 0.74, 0.14, 0.86];
const SVG = "http://www.w3.org/2000/svg";
const PHASES = ["forward", "backward", "updates"];
const data = JSON.parse(document.querySelector("script[type='application/json']").textContent);
const stage = document.querySelector(".stage"), facts = document.querySelector(".facts");
const opened = new Set(data.opened);

function scaled(count, units) {
  let unit = 0;
  while (count >= 1000) { count /= 1000; unit++; }
  return String(+count.toPrecision(3)) + units[unit];
}
const bytesText = (count) => count < 10000 ? count + " B" : scaled(count, [" B", " kB", " MB", " GB", " TB", " PB"]);
const flopsText = (count) => scaled(count, [" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP", " EFLOP"]);
const timeText = (us) => String(+(us / 1000).toPrecision(3)) + " ms";

// -- boxes with the sums of their operations; parents come before their children

const boxes = data.boxes.map(([name, phase, row, inner]) => ({
  name, phase, row, children: Array.isArray(inner) ? inner : [], operation: Array.isArray(inner) ? -1 : inner,
  parent: -1, count: 0, flops: 0, bytes: 0, us: 0, unsized: 0, parts: new Map(),
}));
const boxOf = [];
boxes.forEach((box, k) => {
  for (const child of box.children) boxes[child].parent = k;
  if (box.operation >= 0) boxOf[box.operation] = k;
});
function add(box, other) {
  for (const name of ["count", "flops", "bytes", "us", "unsized"]) box[name] += other[name];
  for (const [key, [us, count]] of other.parts) {
    const old = box.parts.get(key) ?? [0, 0];
    box.parts.set(key, [old[0] + us, old[1] + count]);
  }
}
for (let k = boxes.length - 1; k >= 0; k--) {
  const box = boxes[k];
  if (box.operation >= 0) {
    const [type, device, phase, flops, bytes, us, unsized] = data.operations[box.operation];
    box.type = data.types[type];
    add(box, { count: 1, flops, bytes, us, unsized, parts: new Map([[device * PHASES.length + phase, [us, 1]]]) });
  }
  if (box.parent >= 0) add(boxes[box.parent], box);
}

function partsOf(box) {
  return [...box.parts].sort((a, b) => a[0] - b[0]).map(([key, [us, count]]) => ({
    device: Math.floor(key / PHASES.length), phase: key % PHASES.length, us, share: box.us ? us / box.us : count / box.count,
  }));
}
const color = (device) => "d" + Math.min(device, data.colors - 1);
const kindOf = (box) => box.operation >= 0 ? box.type : box.count + " ops";

function factsOf(box) {
  const parts = partsOf(box), times = PHASES.map((name, phase) => [name, parts.reduce((sum, p) => sum + (p.phase === phase ? p.us : 0), 0)]);
  const known = times.filter(([, us]) => us).map(([name, us]) => name + " " + timeText(us));
  const devices = [...new Set(parts.map((part) => data.devices[part.device]))];
  const words = [
    box.name + ": " + (box.operation >= 0 ? box.type : box.count + " operations"), flopsText(box.flops),
    bytesText(box.bytes) + " read and written", timeText(box.us) + " predicted" + (known.length > 1 ? " (" + known.join(", ") + ")" : ""),
    "on " + devices.join(", "),
  ];
  if (box.unsized) words.push(box.unsized + " with sizes that only a step tells");
  return words.join("; ");
}

// -- edges between visible boxes; a value counts once in an edge

function visible() {
  const seen = [];
  boxes.forEach((box, k) => {
    const isSeen = box.parent < 0 || (opened.has(box.parent) && seen[box.parent] === box.parent);
    seen.push(isSeen ? k : seen[box.parent]);
  });
  return seen;
}
function edgesOf() {
  const seen = visible(), found = new Map();
  const taskOf = (operation) => data.tasks[data.operations[operation][1]];
  for (const [source, bytes, ...users] of data.values) {
    const a = seen[boxOf[source]];
    for (const b of new Set(users.map((user) => seen[boxOf[user]]))) if (a !== b) {
      const key = a * boxes.length + b, edge = found.get(key) ?? { a, b, values: 0, bytes: 0, crosses: false };
      edge.values++; edge.bytes += bytes; edge.crosses ||= users.some((user) => seen[boxOf[user]] === b && taskOf(user) !== taskOf(source));
      found.set(key, edge);
    }
  }
  return [...found.values()];
}

// -- lines of boxes and lanes of edges

function linesOf(places) {
  const lines = [];
  let lastRow = -1, alone = false;
  for (const k of places) {
    if (boxes[k].row !== lastRow || opened.has(k) || alone || lines.at(-1).length === PER_LINE) lines.push([]);
    lines.at(-1).push(k);
    lastRow = boxes[k].row; alone = opened.has(k);
  }
  return lines;
}
function outwards(k) {
  const chain = [];
  for (; k >= 0; k = boxes[k].parent) chain.unshift(k);
  return chain;
}
function chooseLanes(edges, lineOf) {
  const lanes = new Map();
  for (const edge of edges) {
    const [x, y] = [outwards(edge.a), outwards(edge.b)];
    let i = 0;
    while (x[i] === y[i]) i++;
    const first = lineOf.get(x[i]), last = lineOf.get(y[i]);
    edge.group = i ? x[i - 1] : -1; edge.low = Math.min(first, last); edge.high = Math.max(first, last);
    edge.side = last > first ? "left" : "right";
    edge.straight = x[i] === edge.a && y[i] === edge.b && edge.high - edge.low === 1;
  }
  for (const edge of edges.filter((e) => !e.straight).sort((e, f) => e.high - e.low - (f.high - f.low) || e.low - f.low || e.a - f.a || e.b - f.b)) {
    const key = edge.group + edge.side, taken = lanes.get(key) ?? [];
    lanes.set(key, taken);
    let lane = taken.findIndex((spans) => spans.every(([low, high]) => edge.high <= low || high <= edge.low));
    if (lane < 0) lane = taken.push([]) - 1;
    taken[lane].push([edge.low, edge.high]);
    edge.lane = lane;
  }
  return lanes;
}

// -- elements

function html(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}
function svg(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
let nodes = new Map(), edges = [];

function button(k) {
  const box = boxes[k], node = html("button", "box" + (box.phase ? " of-phase" : "")), parts = partsOf(box);
  node.type = "button"; node.title = factsOf(box);
  node.append(html("span", "name", box.name), html("span", "fact", timeText(box.us) + " · " + kindOf(box)));
  if (!opened.has(k)) {
    const bar = html("span", "bar"), main = parts.reduce((best, part) => part.share > best.share ? part : best);
    node.classList.add(color(main.device));
    for (const part of parts) {
      const piece = html("span", color(part.device) + " p" + part.phase);
      piece.style.width = 100 * part.share + "%";
      bar.append(piece);
    }
    node.append(bar);
  }
  if (box.children.length) {
    node.setAttribute("aria-expanded", String(opened.has(k)));
    node.addEventListener("click", () => { if (!opened.delete(k)) opened.add(k); draw(k); });
  }
  for (const event of ["focus", "pointerenter"]) node.addEventListener(event, () => tell(k));
  return node;
}
function container(group, places, lanes, lineOf) {
  const node = html("div", "lines");
  for (const side of ["left", "right"]) {
    const count = lanes.get(group + side)?.length ?? 0;
    node.style["padding" + (side === "left" ? "Left" : "Right")] = PAD + (count ? count * LANE + LABEL : 0) + "px";
  }
  for (const line of linesOf(places)) {
    const row = html("div", "line");
    for (const k of line) {
      const head = button(k);
      nodes.set(k, head);
      if (opened.has(k)) {
        const frame = html("div", "group" + (boxes[k].phase ? " of-phase" : ""));
        frame.setAttribute("role", "group"); frame.setAttribute("aria-label", boxes[k].name);
        frame.append(head, container(k, boxes[k].children, lanes, lineOf));
        row.append(frame);
      } else row.append(head);
    }
    node.append(row);
  }
  return node;
}

function frameOf(k, origin) {
  const node = opened.has(k) ? nodes.get(k).parentElement : nodes.get(k), frame = node.getBoundingClientRect();
  return { x: frame.left - origin.left, y: frame.top - origin.top, width: frame.width, height: frame.height };
}
function routeOf(edge, origin, sides) {
  const a = frameOf(edge.a, origin), b = frameOf(edge.b, origin), up = b.y < a.y + a.height;
  const port = edge.straight ? a.width / 2 : PORT, end = edge.straight ? b.width / 2 : PORT;
  const [x1, y1, x2, y2] = up ? [a.x + a.width - PORT, a.y, b.x + b.width - PORT, b.y + b.height] : [a.x + port, a.y + a.height, b.x + end, b.y];
  if (edge.straight) {
    const middle = (y1 + y2) / 2;
    const points = ALONG_CURVE.map((t) => [x1 + (x2 - x1) * (3 - 2 * t) * t * t, y1 + (y2 - y1) * (1.5 * t - 1.5 * t * t + t ** 3)]);
    const falls = (x2 - x1) * (y2 - y1) > 0, down = (left) => Math.abs(x2 - x1) < STEEP ? CENTERED : left === falls ? BELOW : ABOVE;
    const spots = [!up, up].flatMap((left) => points.map(([x, y]) => beside(x, y, left, down(left))));
    return { up, x2, y2, spots, path: `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}` };
  }
  const x = sides(edge.group)[edge.side] + (edge.side === "left" ? -1 : 1) * LANE * (edge.lane + 1);
  const turn = (8 + 2 * (edge.lane % 6)) * (up ? -1 : 1);
  const points = [[x1, y1], [x1, y1 + turn], [x, y1 + turn], [x, y2 - turn], [x2, y2 - turn], [x2, y2]];
  const spots = ALONG_LANE.map((share) => beside(x, y1 + turn + share * (y2 - y1 - 2 * turn), !up));
  return { up, x2, y2, spots, path: rounded(points) };
}
const beside = (x, y, left, down = CENTERED) => ({ x: left ? x - GAP : x + GAP, y: y + down, left });
function rounded(points) {
  const towards = ([x, y], [toX, toY]) => {
    const dx = toX - x, dy = toY - y, length = Math.max(Math.abs(dx), Math.abs(dy), 1), share = Math.min(CORNER, length / 2) / length;
    return [x + dx * share, y + dy * share];
  };
  let path = "M" + points[0].join(" ");
  for (let i = 1; i + 1 < points.length; i++) {
    path += "L" + towards(points[i], points[i - 1]).join(" ") + "Q" + points[i].join(" ") + " " + towards(points[i], points[i + 1]).join(" ");
  }
  return path + "L" + points.at(-1).join(" ");
}
function drawEdges(lines) {
  const origin = stage.getBoundingClientRect(), cache = new Map();
  const layer = svg("svg", { class: "edges", width: stage.scrollWidth, height: stage.scrollHeight, "aria-hidden": "true" });
  const sides = (group) => {
    if (!cache.has(group)) {
      const frames = lines.get(group).flat().map((k) => frameOf(k, origin));
      cache.set(group, { left: Math.min(...frames.map((f) => f.x)), right: Math.max(...frames.map((f) => f.x + f.width)) });
    }
    return cache.get(group);
  };
  for (const edge of edges) {
    const route = routeOf(edge, origin, sides), kind = (route.up ? " up" : "") + (edge.crosses ? " crossing" : "");
    const shape = svg("g", { class: "link" });
    shape.append(
      svg("title", {}, `${boxes[edge.a].name} to ${boxes[edge.b].name}: ${edge.values} values, ${bytesText(edge.bytes)}` + (edge.crosses ? ", sent to another task" : "")),
      svg("path", { d: route.path, class: "edge" + kind }),
      svg("path", { d: `M${route.x2} ${route.y2}l-4 ${route.up ? 7 : -7}h8z`, class: "tip" + kind }),
    );
    edge.spots = route.spots;
    edge.shape = shape;
    layer.append(shape);
  }
  stage.prepend(layer);
  drawLabels(layer, origin);
}
// The largest bytes choose first; a label without a place beside its edge is seen while the pointer is on the edge.
function drawLabels(layer, origin) {
  const labels = edges.filter((edge) => edge.bytes).sort((e, f) => f.bytes - e.bytes).map((edge) => {
    const text = svg("text", { class: "amount" }, bytesText(edge.bytes));
    layer.append(text);  // above all lines
    edge.text = text;
    return { edge, text };
  });
  for (const label of labels) label.width = label.text.getComputedTextLength();
  const taken = [...nodes.keys()].map((k) => ({ ...frameOf(k, origin), ...(opened.has(k) ? { height: HEADER } : {}) }));
  labels.forEach(({ edge, text, width }, number) => {
    const frame = ({ x, y, left }) => ({ x: left ? x - width : x, y: y - ASCENT, width, height: ASCENT + DESCENT });
    const free = (spot) => !taken.some((other) => meet(frame(spot), other));
    const spot = number < MOST_LABELS ? edge.spots.find(free) : undefined, at = spot ?? edge.spots[0];
    if (spot) taken.push(frame(spot)); else { text.classList.add("crowded"); edge.shape.append(text); }
    for (const [key, value] of [["x", at.x], ["y", at.y], ["text-anchor", at.left ? "end" : "start"]]) text.setAttribute(key, value);
  });
}
const meet = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

function tell(k) {
  const words = [factsOf(boxes[k])];
  for (const [word, end, far] of [["from", "b", "a"], ["to", "a", "b"]]) {
    const found = edges.filter((edge) => edge[end] === k).sort((e, f) => f.bytes - e.bytes);
    const shown = found.slice(0, MOST_LISTED).map((edge) => boxes[edge[far]].name + " " + bytesText(edge.bytes));
    if (found.length > MOST_LISTED) shown.push(found.length - MOST_LISTED + " more");
    if (shown.length) words.push(word + " " + shown.join(", "));
  }
  facts.replaceChildren(...words.map((text) => html("span", "", text)));
  for (const edge of edges) for (const part of [edge.shape, edge.text]) part?.classList.toggle("lit", edge.a === k || edge.b === k);
}

function draw(focused) {
  const lines = new Map([[-1, linesOf(data.tops)]]), lineOf = new Map();
  for (const k of opened) lines.set(k, linesOf(boxes[k].children));
  for (const group of lines.values()) group.forEach((line, number) => line.forEach((k) => lineOf.set(k, number)));
  nodes = new Map(); edges = edgesOf();
  const lanes = chooseLanes(edges, lineOf);
  stage.replaceChildren(container(-1, data.tops, lanes, lineOf));
  drawEdges(lines);
  if (focused !== undefined) nodes.get(focused).focus();
}

document.getElementById("layers").addEventListener("click", () => { opened.clear(); for (const k of data.opened) opened.add(k); draw(); });
document.getElementById("none").addEventListener("click", () => { opened.clear(); draw(); });
draw();
