// The chart of an operation over the message size, drawn by uPlot in place of the picture: bandwidth or time, linear or logarithmic,
// zoom, series to show or hide, one tooltip with all series at a size, by pointer or arrow keys. Lines, markers and intervals look as
// in the picture: the buttons of the series are drawn with its classes, and the chart takes colors and dashes from there.

const FONT = "11px system-ui, sans-serif";
const MARGIN = 172; // pixels right of the axes for the names of limits, where the window is wide
const MARKER = "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z"; // around its place; open where it is doubtful
const CROSS = "m-4-4 8 8m0-8-8 8"; // wrong data
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// Return a CSS color of the page as uPlot needs it: light-dark() is resolved by an element.
function resolved(name) {
  const probe = element("span", { style: "forced-color-adjust: none" }); // where the reader chooses the colors, series keep theirs
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// Return a new element of SVG with attributes and children.
function drawn(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Return the line and the marker of a series, for its button: the color is that of its backend, the dash that of its run.
function sample({ look }) {
  const line = drawn("path", { class: `line ${look}`, d: "M1 6h28" });
  return drawn("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" }, line, drawn("path", { class: look, d: `M15 6${MARKER}` }));
}

// Return a message size as text: "64 KiB".
function sizeText(bytes) {
  const unit = Math.max(0, Math.min(UNITS.length - 1, Math.floor(Math.log2(bytes) / 10)));
  return `${+(bytes / 1024 ** unit).toPrecision(4)} ${UNITS[unit]}`;
}

// Return a time in microseconds with a unit of its size: "2 µs", "50 ms".
function spanText(time) {
  const [factor, unit] = [[1e6, "s"], [1e3, "ms"], [1, "µs"]].find(([least]) => time >= least * (1 - 1e-9)) ?? [1e-3, "ns"];
  return `${+(time / factor).toPrecision(6)} ${unit}`;
}

// Return the ticks of a logarithmic axis, as the picture has them: powers of ten, with 2 and 5 if there is room. An axis with fewer than
// three of them has even steps.
function logTicks(low, high) {
  const first = Math.floor(Math.log10(low));
  const decades = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, number) => first + number);
  const steps = decades.length <= 4 ? [1, 2, 5] : [1];
  const every = 1 + Math.floor(decades.length / 9);
  const ticks = decades.filter((decade) => decade % every === 0).flatMap((decade) => steps.map((step) => step * 10 ** decade));
  const inside = ticks.filter((tick) => low <= tick && tick <= high);
  if (inside.length >= 3) return inside;
  const least = (high - low) / 6;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= least * (1 - 1e-9));
  return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, number) => (Math.ceil(low / step) + number) * step);
}

class SizePlot extends Walk {
  constructor(figure, data) {
    const holder = element("div", { class: "plot", "aria-label": figure.querySelector("figcaption").textContent.trim() });
    super(holder, holder, "chart; use the arrow keys to go from size to size");
    Object.assign(this, { data, measure: data.rate ? "rate" : "time", log: !data.rate, hidden: new Set(), toggles: [] });
    Object.assign(this, { id: figure.id, title: figure.querySelector("figcaption > :first-child").textContent, zoom: { x: null, y: null } });
    takeState(this);
    const drawing = figure.querySelector(".drawing");
    drawing.classList.add("live");
    drawing.append(this.controls(), holder);
    new ResizeObserver(() => this.resize()).observe(holder);
    theme.addEventListener("click", () => this.draw());
    prefersDark.addEventListener("change", () => this.draw());
    addEventListener("hashchange", () => { if (takeState(this)) this.press(); });
    this.draw();
  }

  controls() {
    const set = (text, values, key) =>
      this.toggle(text, () => this[key] === values[key], () => Object.assign(this, values, { zoom: { ...this.zoom, y: null } }));
    const group = (name, ...buttons) => element("span", { role: "group", "aria-label": name }, ...buttons);
    const measures = group("show", set("bandwidth", { measure: "rate", log: false }, "measure"), set("time", { measure: "time", log: true }, "measure"));
    const axes = group("axis", set("linear", { log: false }, "log"), set("log", { log: true }, "log"));
    const series = this.data.series.map((each, index) =>
      this.toggle(each.name, () => !this.hidden.has(index), () => this.hidden.delete(index) || this.hidden.add(index)));
    this.samples = this.data.series.map(sample);
    series.forEach((made, index) => made.prepend(this.samples[index]));
    const whole = button("reset zoom", () => this.resetZoom());
    return element("div", { class: "controls" }, ...(this.data.rate ? [measures] : []), axes, whole, ...chartTools(this), element("div", { class: "series" }, ...series));
  }

  // Return a button that changes the chart, and is pressed while `holds()`.
  toggle(text, holds, act, attributes = {}) {
    const made = button(text, () => {
      act();
      this.change();
    }, { ...attributes, "aria-pressed": holds() });
    this.toggles.push([made, holds]);
    return made;
  }

  // Draw the chart after a change, and keep its state in the address.
  change() {
    this.press();
    keepState(this);
  }

  // Press the buttons of what is shown, and draw it.
  press() {
    for (const [each, isPressed] of this.toggles) each.setAttribute("aria-pressed", isPressed());
    this.draw();
  }

  resetZoom() {
    this.zoom = { x: null, y: null };
    this.change();
  }

  // Return the color and the dashes of a series, as its sample has them.
  look(index) {
    const { stroke, strokeDasharray } = getComputedStyle(this.samples[index].querySelector(".line"));
    return { stroke, dash: (strokeDasharray.match(/[\d.]+/g) ?? []).map(Number) };
  }

  // Return the columns of uPlot: sizes, then for each shown series its value, its expected value and the ends of its interval, then the limits.
  columns() {
    const { data, measure } = this;
    const [columns, series] = [[data.sizes], [{}]];
    const add = (values, options) => columns.push(values.map((value) => (this.log && value !== null && value <= 0 ? null : value))) && series.push(options);
    data.series.forEach((each, index) => {
      if (this.hidden.has(index)) return;
      const look = this.look(index);
      const gapsOf = (values) => (plot, number, first, last, missing) =>
        [...missing, ...this.far(plot, values)].sort((one, other) => one[0] - other[0]);
      const line = (values, options) => add(values, { ...options, spanGaps: false, gaps: gapsOf(values), points: { show: false } });
      line(each[measure], { ...look, width: 1.8 });
      const expected = each[`${measure}Expected`];
      if (expected) line(expected, { stroke: look.stroke, width: 1.2, dash: [1, 4] });
      if (!each[`${measure}Low`]) return;
      for (const end of ["High", "Low"]) add(each[measure + end], { stroke: "transparent", width: 0, points: { show: false } });
    });
    for (const limit of measure === "rate" ? data.limits : []) {
      const rates = limit.rate.filter((value) => value !== null);
      const gaps = (plot) => (new Set(rates).size > 1 ? this.far(plot, limit.rate) : []); // a level line holds between its sizes, too
      add(limit.rate, { stroke: resolved(limit.style), width: 1.4, dash: [7, 3], spanGaps: false, gaps, points: { show: rates.length === 1, size: 8 } });
    }
    return { columns, series };
  }

  // Return from where to where a line is interrupted, since its sizes there are far apart and nothing is known between them.
  far(plot, values) {
    const { sizes, far } = this.data;
    const known = sizes.filter((size, place) => values[place] !== null);
    const at = (size) => plot.valToPos(size, "x", true);
    return known.slice(1).flatMap((size, place) => (size > far * known[place] ? [[at(known[place]), at(size)]] : []));
  }

  // Draw the intervals and the markers of the shown series over their lines: open ones are doubtful, a cross is wrong data.
  mark(plot) {
    const { data, hidden, measure } = this;
    const { ctx, bbox: { left, top, width, height } } = plot;
    const [paper, bad] = ["paper", "bad"].map(resolved);
    const at = (value) => plot.valToPos(this.log && value <= 0 ? plot.scales.y.min : value, "y", true);
    ctx.save();
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.rect(left - 5, top - 5, width + 10, height + 10);
    ctx.clip();
    data.series.forEach((each, index) => {
      if (hidden.has(index)) return;
      const { stroke } = this.look(index);
      each[measure].forEach((value, place) => {
        if (value === null || (this.log && value <= 0)) return;
        ctx.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, plot.valToPos(data.sizes[place], "x", true), at(value));
        const [start, end] = ["Low", "High"].map((end) => (at(each[measure + end]?.[place] ?? value) - at(value)) / devicePixelRatio);
        if (Math.abs(start - end) >= 1) {
          Object.assign(ctx, { strokeStyle: stroke, globalAlpha: 0.4, lineWidth: 3.5 });
          ctx.stroke(new Path2D(`M0 ${start}V${end}`));
        }
        ctx.globalAlpha = 1;
        const state = each.states[place];
        if (state === "wrong") {
          Object.assign(ctx, { strokeStyle: bad, lineWidth: 2 });
          ctx.stroke(new Path2D(`M0 0${CROSS}`));
          return;
        }
        const marker = new Path2D(`M0 0${MARKER}`);
        Object.assign(ctx, { strokeStyle: stroke, fillStyle: state ? paper : stroke, lineWidth: 1 });
        ctx.fill(marker);
        ctx.stroke(marker);
      });
    });
    ctx.restore();
  }

  // Draw the chart again.
  draw() {
    const width = this.focus.clientWidth || 700; // before the page gets shorter, which may take away its scroll bar
    this.hasMargin = this.measure === "rate" && this.data.limits.length > 0 && width >= 560;
    this.plot?.destroy();
    const { columns, series } = this.columns();
    const axis = { stroke: resolved("soft"), grid: { stroke: resolved("grid"), width: 1 }, ticks: { show: false }, font: FONT, labelFont: FONT, labelSize: 18 };
    const labels = (text) => (plot, ticks) => ticks.map((tick) => (tick === null ? "" : text(tick)));
    const range = (low, high) => (low === null ? [0.1, 1] : this.log ? [low / 1.3, high * 1.3] : [0, high * 1.05]);
    this.plot = new uPlot({
      width, height: width < 560 ? 260 : 340, series, legend: { show: false },
      padding: [12, this.hasMargin ? MARGIN : 24, 0, 4],
      scales: { x: { distr: 3, log: 2, time: false }, y: { distr: this.log ? 3 : 1, range: (plot, low, high) => range(low, high) } },
      axes: [
        { ...axis, values: labels(sizeText), size: 28, space: 64, label: "message size" },
        { ...axis, ...(this.log ? { splits: (plot, number, low, high) => logTicks(low, high), filter: (plot, ticks) => ticks } : {}), values: labels(this.measure === "rate" ? (tick) => +tick.toPrecision(6) : spanText), size: 58, label: this.measure === "rate" ? "bus bandwidth, GB/s" : "time" },
      ],
      cursor: { y: false, drag: { x: true, y: true, uni: 30, setScale: false }, points: { size: 8 }, bind: { dblclick: () => () => this.resetZoom() } },
      hooks: { setSelect: [() => zoomToSelection(this)], setCursor: [(plot) => this.hover(plot)], draw: [(plot) => this.mark(plot), (plot) => this.nameLimits(plot)] },
    }, columns, this.focus);
    showZoom(this);
  }

  // Write the name of each limit beside the end of its line: "expected 0.120 GB/s". Equal names that would touch are written once.
  nameLimits(plot) {
    if (!this.hasMargin) return;
    const { left, top, width, height } = plot.bbox;
    const [written, least] = [[], 13 * devicePixelRatio];
    Object.assign(plot.ctx, { font: FONT.replace("11", String(11 * devicePixelRatio)), textAlign: "left", textBaseline: "middle" });
    for (const limit of this.data.limits) {
      let y = plot.valToPos(limit.rate.findLast((rate) => rate !== null), "y", true);
      if (!(y >= top - 1 && y <= top + height + 1)) continue;
      const name = `${limit.label} ${rateText(limit.rate.findLast((rate) => rate !== null))} GB/s`;
      const touches = (each) => Math.abs(each.y - y) < least;
      if (written.some((each) => each.name === name && touches(each))) continue;
      const step = y > top + height / 2 ? -1 : 1; // away from the labels of the axis
      while (written.some(touches)) y += step;
      written.push({ name, y });
      plot.ctx.fillStyle = resolved(limit.style);
      plot.ctx.fillText(name, left + width + 6 * devicePixelRatio, y);
    }
  }

  resize() {
    const width = this.focus.clientWidth;
    if (width && Math.abs(width - this.plot.width) > 1) this.draw();
  }

  // Return the texts of all shown series at a size.
  text(place) {
    const { data, hidden, measure } = this;
    const shown = data.series.filter((each, index) => !hidden.has(index) && each.texts[place]).map((each) => each.texts[place]);
    const limits = data.limits.filter((limit) => measure === "rate" && limit.rate[place] !== null).map((limit) => `${limit.label} ${rateText(limit.rate[place])} GB/s`);
    return [data.labels[place], ...shown, ...limits].join("\n");
  }

  // uPlot moves its cursor, and calls `hover`. A tap ends with a mouse that leaves, which must not hide the tip.
  point(event) { this.byTouch = event.pointerType === "touch"; }

  hover(plot) {
    const { idx, left, top } = plot.cursor;
    if (idx === null || idx === undefined || left < 0) return this.byKey || this.byTouch || hideTip();
    this.at = idx;
    const box = plot.over.getBoundingClientRect();
    showTip(this.text(idx), box.left + left, box.top + Math.max(0, top));
  }

  leave() {
    this.byKey = false;
    hideTip();
  }

  step(key) { return along(key, this.at ?? -1, this.data.sizes.length - 1); }

  show(place) {
    Object.assign(this, { byKey: true, at: place });
    this.plot.setCursor({ left: this.plot.valToPos(this.data.sizes[place], "x"), top: 10 });
    announcement.textContent = this.text(place);
  }
}

if (typeof uPlot === "function") eachChart("sizes", (figure, data) => new SizePlot(figure, data));
