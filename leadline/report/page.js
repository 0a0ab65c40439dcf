"use strict";
// Draws each chart of the page from the JSON in #charts. Every text is set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 7; // .c0 to .c6 in page.css
const DASHES = ["none", "12 4", "12 3 2 3", "6 3"]; // 7 colours and 4 dashes: 28 lines before two look the same
const MARKS = [
  "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", // circle, square, triangle, diamond, the triangle upside down
  "m-3 -3h6v6h-6z",
  "m0 -4l4 7h-8z",
  "m0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z",
  "m0 4l-4 -7h8z",
];
const MOST_ROWS = 14; // in the readout

function add(parent, name, attributes = {}, text = "") {
  const drawn = name === "svg" || parent.namespaceURI === SVG;
  const element = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return parent.appendChild(element);
}

// ── Numbers ──

// On an axis: 0.5, 4.2k, 1e-3. `step` says how many digits matter, `most` how large the axis gets.
function label(value, step, most) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  let [unit, suffix] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([from]) => size >= from) ?? [1, ""];
  if (size >= 1e12 || most < 0.01) {
    const power = Math.floor(Math.log10(size) + 1e-9);
    [unit, suffix] = [Number(`1e${power}`), `e${power}`];
  }
  const digits = Math.min(12, Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  const text = (value / unit).toFixed(digits);
  return (text.includes(".") ? text.replace(/\.?0+$/, "") : text) + suffix;
}

// In the readout: four digits, whole numbers whole.
function exact(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en");
  if (size >= 1e7 || size < 0.01) return value.toExponential(3).replace(/\.?0*e\+?/, "e");
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

function ticks([low, high], log, count) {
  const decades = log ? Math.log10(high / low) : 0;
  if (decades >= 0.5) {
    const every = Math.ceil(decades / count);
    const within = decades < 0.2 * count ? [1, 2, 3, 4, 6, 8] : decades < 0.6 * count ? [1, 2, 5] : [1];
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const digit of power % every ? [] : within) {
        const value = Number(`${digit}e${power}`);
        if (low <= value && value <= high) found.push({ value, text: label(value, value / digit, value) });
      }
    }
    return found;
  }
  const wanted = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = power * [1, 2, 5, 10].find((digit) => digit * power * 1.42 >= wanted);
  const first = Math.ceil(low / step - 1e-9);
  const length = Math.min(50, Math.floor(high / step + 1e-9) - first + 1);
  const most = Math.max(Math.abs(low), Math.abs(high));
  return Array.from({ length }, (_, i) => ({ value: (first + i) * step, text: label((first + i) * step, step, most) }));
}

// A range with room around it, also when it is a single number.
function roomy([low, high], log, share) {
  const [from, to] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
  const span = to - from;
  const room = span > 1e-9 * Math.max(Math.abs(from), Math.abs(to)) ? share * span : log ? 0.3 : 0.1 * Math.abs(from) || 1;
  return log ? [10 ** (from - room), 10 ** (to + room)] : [from - room, to + room];
}

function scale(range, log, from, to) {
  const [low, high] = log ? range.map(Math.log10) : range;
  const far = (pixel) => Math.max(-1e6, Math.min(1e6, pixel));
  return {
    range,
    at: (value) => far(from + (((log ? Math.log10(value) : value) - low) / (high - low)) * (to - from)),
    value(pixel) {
      const value = low + ((pixel - from) / (to - from)) * (high - low);
      return log ? 10 ** value : value;
    },
  };
}

const usable = (value, log) => value !== null && value !== undefined && (!log || value > 0);

// ── Lines ──

// At most four points for each column of pixels: a line through thousands looks the same.
function thinned(points) {
  const kept = [];
  for (let begin = 0, end; begin < points.length; begin = end) {
    let low = begin, high = begin;
    for (end = begin; end < points.length && Math.round(points[end][0]) === Math.round(points[begin][0]); end++) {
      if (points[end][1] < points[low][1]) low = end;
      if (points[end][1] > points[high][1]) high = end;
    }
    for (const i of [...new Set([begin, low, high, end - 1])].sort((a, b) => a - b)) kept.push(points[i]);
  }
  return kept;
}

const joined = (points) => points.map((point) => point.map((pixel) => pixel.toFixed(1)).join(" ")).join("L");

// Pixels of (x, y) for each unbroken stretch.
function stretches(xs, ys, x, y, log) {
  const found = [[]];
  xs.forEach((value, i) => {
    if (usable(value, log.x) && usable(ys[i], log.y)) found.at(-1).push([x.at(value), y.at(ys[i])]);
    else if (found.at(-1).length) found.push([]);
  });
  return found.filter((stretch) => stretch.length);
}

// ── A chart ──

class Chart {
  constructor(section, data, number) {
    Object.assign(this, { section, data, number, log: data.log, view: { x: null, y: null }, groups: new Map() });
    this.addGroups();
    const [title, caption] = section.children;
    const head = add(section, "div", { class: "head" });
    head.append(title);
    this.tools = add(head, "div", { class: "tools" });
    this.logButtons = ["x", "y"].map((which) => this.button(`log ${which}`, () => this.toggleLog(which)));
    this.resetButton = this.button("Reset zoom", () => this.reset());
    this.plot = add(section, "div", { class: "plot" });
    this.svg = add(this.plot, "svg", { role: "img", tabindex: 0 });
    this.readout = add(this.plot, "div", { class: "readout", role: "status", hidden: "" });
    if (caption) section.append(caption);
    this.note = add(section, "p", { class: "note" });
    this.legend = add(section, "div", { class: "legend", role: "group", "aria-label": "shown in the chart" });
    this.fillLegend();
    this.addData();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  addGroups() {
    const fresh = new Map();
    for (const { group, selected } of this.data.series) {
      if (!this.groups.has(group)) fresh.set(group, { on: selected || (fresh.get(group)?.on ?? false) });
    }
    // What is shown at first gets the first colours, so that they differ.
    const count = this.groups.size;
    [...fresh.values()].sort((a, b) => b.on - a.on).forEach((group, index) => (group.index = count + index));
    for (const [name, group] of fresh) this.groups.set(name, group);
  }

  // Newer data in place of the old: the zoom, what is selected and what is being read stay.
  update(data) {
    if (this.dragged) return; // the next data will do
    const at = this.current;
    this.data = data;
    this.addGroups();
    this.fillLegend();
    if (this.details.open) this.fillData();
    else this.filled = false;
    this.draw();
    if (at !== undefined && this.ready && this.visible(at)) this.show(this.x.at(at));
  }

  button(text, action) {
    const button = add(this.tools, "button", { type: "button" }, text);
    button.addEventListener("click", action);
    return button;
  }

  // A run that is chosen in one chart is chosen in all.
  choose(names, on) {
    for (const chart of charts) {
      for (const name of names) {
        const group = chart.groups.get(name);
        if (group) group.on = on;
        if (group?.box) group.box.checked = on;
      }
      chart.draw();
    }
  }

  fillLegend() {
    const { legend } = this;
    // What has no value has a colour, the same in all charts, but nothing is drawn of it.
    const drawn = this.data.series.filter((s) => s.y.some((y) => usable(y, false)));
    const names = [...this.groups.keys()].filter((name) => drawn.some((s) => s.group === name));
    const listed = JSON.stringify(drawn.map((s) => [s.group, s.style]));
    if (listed === this.listed) return; // a hand may be on it
    this.listed = listed;
    legend.replaceChildren();
    for (const [text, on] of names.length > 8 ? [["all", true], ["none", false]] : []) {
      const button = add(legend, "button", { type: "button" }, text);
      button.addEventListener("click", () => this.choose(names, on));
    }
    for (const name of names) {
      const group = this.groups.get(name);
      const entry = add(legend, "label");
      group.box = add(entry, "input", { type: "checkbox" });
      group.box.checked = group.on;
      group.box.addEventListener("change", () => this.choose([name], group.box.checked));
      const swatch = add(entry, "svg", { width: 34, height: 12, "aria-hidden": "true" });
      const styles = new Set(drawn.filter((s) => s.group === name).map((s) => s.style));
      if (styles.has("line")) this.path(swatch, group, "M1 6H33", "line");
      else if (styles.has("dashes")) this.path(swatch, group, "M1 6H33", "dashes");
      if (styles.has("points")) this.path(swatch, group, `M17 6${this.mark(group)}`, "points");
      add(entry, "span", {}, name);
    }
  }

  // The numbers as a table, made when it is asked for.
  addData() {
    this.details = add(this.section, "details", { class: "data" });
    add(this.details, "summary", {}, "Data");
    this.box = add(this.details, "div", { class: "box", tabindex: 0, role: "region", "aria-label": "data" });
    this.details.addEventListener("toggle", () => this.details.open && !this.filled && this.fillData());
  }

  fillData() {
    const { box } = this;
    const { series, x_label } = this.data;
    const scrolled = [box.scrollLeft, box.scrollTop];
    const values = [...new Set(series.flatMap((s) => s.x))].filter((x) => x !== null).sort((a, b) => a - b);
    const every = Math.ceil(values.length / 500);
    const at = series.map((s) => new Map(s.x.map((x, i) => [x, s.y[i]])));
    box.replaceChildren();
    const table = add(box, "table");
    const head = add(table, "tr");
    for (const text of [x_label, ...series.map(fullName)]) add(head, "th", {}, text);
    for (const x of values.filter((_, i) => i % every === 0)) {
      const row = add(table, "tr");
      add(row, "td", { class: "number" }, exact(x));
      for (const column of at) add(row, "td", { class: "number" }, column.has(x) ? exact(column.get(x)) : "");
    }
    if (every > 1) add(box, "p", { class: "note" }, `one row in ${every}`);
    [box.scrollLeft, box.scrollTop] = scrolled;
    this.filled = true;
  }

  mark(group) {
    return MARKS[group.index % MARKS.length];
  }

  path(parent, group, d, style) {
    const attributes = { d, class: `${style} c${group.index % COLOURS}` };
    if (style === "line") attributes["stroke-dasharray"] = DASHES[group.index % DASHES.length];
    return add(parent, "path", attributes);
  }

  shown() {
    return this.data.series.filter((s) => this.groups.get(s.group).on);
  }

  range(which, view = this.view) {
    const log = this.log;
    let low = Infinity, high = -Infinity;
    for (const s of this.shown()) {
      s.x.forEach((x, i) => {
        if (!usable(x, log.x) || !usable(s.y[i], log.y)) return;
        if (which === "y" && view.x && (x < view.x[0] || x > view.x[1])) return;
        for (const value of which === "x" ? [x] : [s.y[i], s.low[i], s.high[i]]) {
          if (!usable(value, log[which])) continue;
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      });
    }
    if (low <= high) return roomy([low, high], log[which], which === "x" ? 0.015 : 0.06);
    return view.x ? this.range(which, { x: null }) : null;
  }

  draw() {
    const width = this.plot.clientWidth;
    const height = Math.round(Math.max(230, Math.min(360, width / 1.9)));
    const { svg, log, data } = this;
    if (!width) return;
    this.leave();
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.logButtons.forEach((button, i) => button.setAttribute("aria-pressed", log["xy"[i]]));
    this.resetButton.disabled = !this.view.x && !this.view.y;
    this.tell();
    const names = [...this.groups.keys()].slice(0, 10).join(", ");
    const spoken = `${data.title}: ${data.y_label} by ${data.x_label} of ${names}. Arrow keys read the values.`;
    svg.setAttribute("aria-label", spoken);
    const ranges = { x: this.range("x"), y: this.range("y") };
    this.ready = Boolean(ranges.x && ranges.y);
    if (!this.ready) {
      const why = this.shown().length ? "no values to draw" : "nothing is selected";
      add(svg, "text", { x: width / 2, y: height / 2, class: "middle" }, why);
      return;
    }
    for (const which of ["x", "y"]) ranges[which] = this.view[which] ?? ranges[which];
    const top = 26, bottom = height - 40, right = width - 14;
    const rows = ticks(ranges.y, log.y, (bottom - top) / 32);
    const left = 14 + 7 * Math.max(2, ...rows.map((tick) => tick.text.length));
    const columns = ticks(ranges.x, log.x, (right - left) / 80);
    const x = scale(ranges.x, log.x, left, right);
    const y = scale(ranges.y, log.y, bottom, top);
    Object.assign(this, { x, y, frame: { left, right, top, bottom, width, height } });

    let used = Infinity; // of the space of labels, so that none stands on another
    for (const { value, text } of rows) {
      const at = y.at(value);
      if (used - at < 15) continue;
      used = at;
      add(svg, "path", { d: `M${left} ${at}H${right}`, class: "grid" });
      add(svg, "text", { x: left - 7, y: at + 4, class: "end" }, text);
    }
    used = -Infinity;
    for (const { value, text } of columns) {
      const at = x.at(value), half = 3.6 * text.length;
      if (at - half < used + 8 || at + half > width) continue;
      used = at + half;
      add(svg, "path", { d: `M${at} ${top}V${bottom}`, class: "grid" });
      add(svg, "text", { x: at, y: bottom + 17, class: "middle" }, text);
    }
    add(svg, "path", { d: `M${left} ${top}V${bottom}H${right}`, class: "axis" });
    add(svg, "text", { x: 4, y: 14, class: "name" }, data.y_label);
    add(svg, "text", { x: right, y: height - 5, class: "name end" }, data.x_label);

    const id = `clip${this.number}`;
    add(add(svg, "clipPath", { id }), "rect", { x: left, y: top, width: right - left, height: bottom - top });
    const [inside, above] = [1, 2].map(() => add(svg, "g", { "clip-path": `url(#${id})` })); // points lie on lines
    for (const s of this.shown()) this.drawSeries(s.style === "points" ? above : inside, s);
    this.cross = add(svg, "g", { class: "cross" });
  }

  drawSeries(parent, s) {
    const { x, y, log, frame } = this;
    const group = this.groups.get(s.group);
    const holder = add(parent, "g", { "data-series": fullName(s) });
    if (s.low.length && s.high.length) {
      // Both edges or neither: where one is missing the band has a gap.
      const [high, low] = [[s.high, s.low], [s.low, s.high]].map(([edge, other]) =>
        stretches(s.x, edge.map((value, i) => (usable(other[i], log.y) ? value : null)), x, y, log));
      const d = high.map((edge, i) => `M${joined(thinned(edge))}L${joined(thinned(low[i]).reverse())}Z`).join("");
      this.path(holder, group, d, "band");
    }
    let line = "", marks = "";
    for (const stretch of stretches(s.x, s.y, x, y, log)) {
      if (s.style !== "points" && stretch.length > 1) line += `M${joined(thinned(stretch))}`;
      else {
        for (const point of stretch) {
          if (point[0] > frame.left - 9 && point[0] < frame.right + 9) marks += `M${joined([point])}${this.mark(group)}`;
        }
      }
    }
    if (line) this.path(holder, group, line, s.style);
    if (marks) this.path(holder, group, marks, "points");
  }

  // What a reader cannot see in the picture.
  tell() {
    let missing = 0, hidden = 0;
    for (const s of this.shown()) {
      s.y.forEach((y, i) => {
        if (!usable(y, false)) missing++;
        else if (!usable(y, this.log.y) || !usable(s.x[i], this.log.x)) hidden++;
      });
    }
    const values = (count) => (count === 1 ? "1 value is" : `${exact(count)} values are`);
    const words = [];
    if (missing) words.push(`${values(missing)} missing or not finite.`);
    if (hidden) words.push(`${values(hidden)} 0 or below, which a log axis cannot show.`);
    this.note.textContent = words.join(" ");
  }

  // ── What a reader does ──

  listen() {
    const { svg } = this;
    this.dragged = null; // where a drag has begun
    const place = (event) => {
      const box = svg.getBoundingClientRect();
      const { left, right, top, bottom, width } = this.frame;
      const factor = width / box.width;
      return {
        x: Math.max(left, Math.min(right, (event.clientX - box.left) * factor)),
        y: Math.max(top, Math.min(bottom, (event.clientY - box.top) * factor)),
      };
    };
    svg.addEventListener("pointerdown", (event) => {
      if (!this.ready || event.button) return;
      this.dragged = place(event);
      svg.setPointerCapture(event.pointerId);
      this.show(this.dragged.x);
    });
    svg.addEventListener("pointermove", (event) => {
      if (!this.ready) return;
      if (this.dragged) this.mask(this.dragged, place(event));
      else this.show(place(event).x);
    });
    svg.addEventListener("pointerup", (event) => {
      if (this.dragged && this.ready) this.zoom(this.dragged, place(event));
      this.dragged = null;
    });
    svg.addEventListener("pointercancel", () => {
      this.dragged = null;
      this.leave();
    });
    svg.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && !this.dragged) this.leave();
    });
    document.addEventListener("pointerdown", (event) => {
      if (!svg.contains(event.target)) this.leave();
    });
    svg.addEventListener("dblclick", () => this.reset());
    svg.addEventListener("blur", () => this.leave());
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.leave();
      if (!step || !this.ready) return;
      event.preventDefault();
      const values = [...new Set(this.shown().flatMap((s) => s.x))].filter((x) => this.visible(x)).sort((a, b) => a - b);
      const next = values.indexOf(this.current) + step;
      const index = this.current === undefined && step < 0 ? values.length - 1 : next;
      if (values.length) this.show(this.x.at(values[Math.max(0, Math.min(values.length - 1, index))]));
    });
  }

  visible(x) {
    return usable(x, this.log.x) && x >= this.x.range[0] && x <= this.x.range[1];
  }

  // The crosshair at the value of x nearest to a pixel, and what every series has there.
  show(pixel) {
    const { x, y, log, frame, data, readout, cross } = this;
    const nearest = (values, allowed, to) => {
      let best = -1, distance = Infinity;
      values.forEach((value, i) => {
        const away = allowed(value) ? Math.abs(x.at(value) - to) : Infinity;
        if (away < distance) [best, distance] = [i, away];
      });
      return { best, distance };
    };
    let at, closest = Infinity;
    for (const s of this.shown()) {
      const { best, distance } = nearest(s.x, (value) => this.visible(value), pixel);
      if (distance < closest) [at, closest] = [s.x[best], distance];
    }
    this.leave();
    if (at === undefined) return;
    this.current = at;
    const middle = x.at(at);
    add(cross, "path", { d: `M${middle} ${frame.top}V${frame.bottom}`, class: "hair" });
    add(readout, "strong", {}, `${data.x_label} ${exact(at)}`);
    const table = add(readout, "table");
    const groups = [...this.groups].filter(([, group]) => group.on);
    for (const [name, { index }] of groups.slice(0, MOST_ROWS)) {
      const row = add(table, "tr", { class: `c${index % COLOURS}` });
      add(row, "td", { class: "who" }, name);
      for (const s of data.series.filter((each) => each.group === name)) {
        const { best } = nearest(s.x, (value) => usable(value, log.x), middle);
        if (best < 0) continue;
        const cell = add(row, "td", {}, s.name === name ? "" : `${s.name} `);
        const spread = usable(s.low[best]) && usable(s.high[best]) ? ` (${exact(s.low[best])} to ${exact(s.high[best])})` : "";
        add(cell, "b", {}, exact(s.y[best]) + spread);
        if (s.x[best] !== at) cell.append(` at ${exact(s.x[best])}`);
        const height = usable(s.y[best], log.y) ? y.at(s.y[best]) : -1;
        if (height < frame.top || height > frame.bottom || !this.visible(s.x[best])) continue;
        add(cross, "circle", { cx: x.at(s.x[best]), cy: height, r: 4, class: `c${index % COLOURS}` });
      }
    }
    if (groups.length > MOST_ROWS) add(readout, "p", {}, `and ${groups.length - MOST_ROWS} more`);
    this.placeReadout(middle);
  }

  // Beside the crosshair where there is room, else below the plot: it never hides much of the data.
  placeReadout(middle) {
    const { readout, frame } = this;
    const { left, right, top, bottom, width } = frame;
    readout.hidden = false;
    readout.className = "readout beside";
    const fits = readout.offsetWidth < (right - left) / 2 - 16 && readout.offsetHeight < bottom - top;
    if (!fits) readout.className = "readout below";
    const share = this.svg.clientWidth / width;
    const onRight = middle < (left + right) / 2;
    readout.style.left = !fits ? "0" : onRight ? `${(middle + 12) * share}px` : "auto";
    readout.style.right = !fits ? "0" : onRight ? "auto" : `${(width - middle + 12) * share}px`;
  }

  leave() {
    this.cross?.replaceChildren();
    this.readout.replaceChildren();
    this.readout.hidden = true;
    this.current = undefined;
  }

  // A drag chooses x and y; one that hardly moves in a direction leaves that direction as it is.
  chosen(from, to) {
    const wide = Math.abs(to.x - from.x) >= 10, tall = Math.abs(to.y - from.y) >= 20;
    return { x: wide ? [from.x, to.x].sort((a, b) => a - b) : null, y: tall ? [from.y, to.y].sort((a, b) => b - a) : null };
  }

  mask(from, to) {
    this.leave();
    const { x, y } = this.chosen(from, to);
    const { left, right, top, bottom } = this.frame;
    const [west, east] = x ?? [left, right], [south, north] = y ?? [bottom, top];
    if (x || y) add(this.cross, "path", { d: `M${west} ${north}H${east}V${south}H${west}Z`, class: "mask" });
  }

  zoom(from, to) {
    const pixels = this.chosen(from, to);
    for (const which of ["x", "y"]) {
      if (!pixels[which]) continue;
      const range = pixels[which].map((pixel) => this[which].value(pixel));
      // Closer than numbers can be told apart, there is nothing to see.
      if (range[1] - range[0] > 1e-6 * Math.max(...range.map(Math.abs))) this.view[which] = range;
    }
    if (pixels.x || pixels.y) this.draw();
  }

  reset() {
    this.view = { x: null, y: null };
    this.draw();
  }

  toggleLog(which) {
    this.log[which] = !this.log[which];
    if (this.log[which] && this.view[which]?.[0] <= 0) this.view[which] = null;
    this.draw();
  }
}

const fullName = (s) => (s.name === s.group ? s.name : `${s.group} · ${s.name}`);

const charts = [];
let made = 0;

function addChart(section, data) {
  charts.push(new Chart(section, data, made++));
}

const embedded = JSON.parse(document.getElementById("charts").textContent);
document.querySelectorAll("section.chart").forEach((section, i) => addChart(section, embedded[i]));
