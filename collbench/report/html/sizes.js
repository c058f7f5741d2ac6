// The chart of an operation over the message size, drawn by uPlot in place of the picture: bandwidth or time, linear or logarithmic,
// zoom, series to show or hide, one tooltip with all series at a size, by pointer or arrow keys.

const DASH = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
const FONT = "11px system-ui, sans-serif";
const MARGIN = 172; // pixels right of the axes for the names of limits, where the window is wide

// Return a CSS color of the page as uPlot needs it: light-dark() is resolved by an element.
function resolved(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  probe.style.forcedColorAdjust = "none"; // where the reader chooses the colors, series keep theirs
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

class SizePlot {
  constructor(figure, data) {
    Object.assign(this, { figure, data, at: -1, measure: data.rate ? "rate" : "time", log: !data.rate, hidden: new Set() });
    this.drawing = figure.querySelector(".drawing");
    this.holder = document.createElement("div");
    this.holder.className = "plot";
    this.holder.tabIndex = 0;
    this.holder.setAttribute("role", "application");
    this.holder.setAttribute("aria-roledescription", "chart; use the arrow keys to go from size to size");
    this.holder.setAttribute("aria-label", figure.querySelector("figcaption").textContent.trim());
    this.holder.addEventListener("keydown", (event) => this.key(event));
    this.holder.addEventListener("blur", () => this.leave());
    this.holder.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") this.leave(); });
    this.drawing.classList.add("live");
    this.drawing.append(this.controls(), this.holder);
    new ResizeObserver(() => this.resize()).observe(this.holder);
    document.getElementById("theme").addEventListener("click", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.draw();
  }

  controls() {
    const bar = document.createElement("div");
    bar.className = "controls";
    if (this.data.rate) bar.append(this.choice("show", ["bandwidth", "time"], this.measure === "rate" ? 0 : 1, (place) => {
      this.measure = place ? "time" : "rate";
      this.log = place === 1;
      bar.querySelectorAll("[data-name=axis] button").forEach((each, index) => each.setAttribute("aria-pressed", String(index === Number(this.log))));
    }));
    bar.append(this.choice("axis", ["linear", "log"], Number(this.log), (place) => { this.log = place === 1; }));
    bar.append(this.button("all sizes", () => this.draw(false)));
    const series = document.createElement("div");
    series.className = "series";
    this.data.series.forEach((each, index) => {
      const button = this.button(each.name, () => {
        if (!this.hidden.delete(index)) this.hidden.add(index);
        button.setAttribute("aria-pressed", String(!this.hidden.has(index)));
        this.draw();
      });
      button.classList.add(`s${each.style % 4}`);
      button.setAttribute("aria-pressed", "true");
      series.append(button);
    });
    bar.append(series);
    return bar;
  }

  button(text, act) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", act);
    return button;
  }

  choice(name, texts, chosen, act) {
    const group = document.createElement("span");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", name);
    group.dataset.name = name;
    texts.forEach((text, place) => {
      const button = this.button(text, () => {
        act(place);
        group.querySelectorAll("button").forEach((each, index) => each.setAttribute("aria-pressed", String(index === place)));
        this.draw();
      });
      button.setAttribute("aria-pressed", String(place === chosen));
      group.append(button);
    });
    return group;
  }

  // Return the columns of uPlot: sizes, then for each shown series its value and its interval, then the limits.
  columns() {
    const { data, measure } = this;
    const columns = [data.sizes];
    const series = [{}];
    const bands = [];
    const add = (values, options) => columns.push(values.map((value) => (this.log && value !== null && value <= 0 ? null : value))) && series.push(options);
    data.series.forEach((each, index) => {
      if (this.hidden.has(index)) return;
      const stroke = resolved(`series-${each.style % 4}`);
      add(each[measure], { stroke, width: 1.8, spanGaps: false, dash: DASH[(each.style + Math.floor(each.style / 4)) % 4], points: { show: true, size: 6, fill: stroke } });
      if (!each[`${measure}Low`]) return;
      const none = { stroke: "transparent", width: 0, points: { show: false } };
      add(each[`${measure}High`], none);
      add(each[`${measure}Low`], none);
      bands.push({ series: [series.length - 2, series.length - 1], fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.18)") });
    });
    if (measure === "rate") {
      for (const limit of data.limits) {
        const single = limit.rate.filter((value) => value !== null).length === 1;
        add(limit.rate, { stroke: resolved(limit.style), width: 1.4, dash: [7, 3], spanGaps: true, points: { show: single, size: 8 } });
      }
    }
    return { columns, series, bands };
  }

  // Draw the chart again; `zoomed`: with the sizes that are shown now.
  draw(zoomed = true) {
    const { min, max } = this.plot?.scales.x ?? {};
    const width = this.holder.clientWidth || 700; // before the page gets shorter, which may take away its scroll bar
    this.hasMargin = this.measure === "rate" && this.data.limits.length > 0 && width >= 560;
    this.plot?.destroy();
    const { columns, series, bands } = this.columns();
    const { data, measure } = this;
    const axis = { stroke: resolved("soft"), grid: { stroke: resolved("grid"), width: 1 }, ticks: { show: false }, font: FONT, labelFont: FONT, labelSize: 18 };
    const name = (bytes) => {
      const units = ["", "K", "M", "G", "T", "P"];
      let unit = 0;
      for (; bytes >= 1024 && unit < 5; unit++) bytes /= 1024;
      return `${+bytes.toPrecision(4)}${units[unit]}`;
    };
    const range = (plot, low, high) => (this.log ? [low / 1.3, high * 1.3] : [0, high * 1.05]);
    const height = width < 560 ? 260 : 340;
    this.plot = new uPlot({
      width, height, series, bands, legend: { show: false },
      padding: [12, this.hasMargin ? MARGIN : 16, 0, 4],
      scales: { x: { distr: 3, log: 2, time: false }, y: { distr: this.log ? 3 : 1, range: (plot, low, high) => (low === null ? [0.1, 1] : range(plot, low, high)) } },
      axes: [
        { ...axis, values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : name(tick))), size: 28, label: "message size" },
        { ...axis, size: 58, label: measure === "rate" ? "bus bandwidth, GB/s" : "time, µs", values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : +tick.toPrecision(6))) },
      ],
      cursor: { y: false, drag: { x: true, y: false, setScale: true }, points: { size: 8 } },
      hooks: { setCursor: [(plot) => this.hover(plot)], draw: [(plot) => this.nameLimits(plot)] },
    }, columns, this.holder);
    if (zoomed && min && max) this.plot.setScale("x", { min, max });
  }

  // Write the name of each limit beside the end of its line: "expected 0.120 GB/s". Equal names that would touch are written once.
  nameLimits(plot) {
    if (!this.hasMargin) return;
    const { left, top, width, height } = plot.bbox;
    const written = [];
    plot.ctx.font = FONT.replace("11", String(11 * devicePixelRatio));
    plot.ctx.textAlign = "left";
    plot.ctx.textBaseline = "middle";
    for (const limit of this.data.limits) {
      const last = limit.rate.findLast((rate) => rate !== null);
      let y = plot.valToPos(last, "y", true);
      if (!(y >= top - 1 && y <= top + height + 1)) continue;
      const name = limit.name.split(":")[0];
      const least = 13 * devicePixelRatio;
      if (written.some((each) => each.name === name && Math.abs(each.y - y) < least)) continue;
      const step = y > top + height / 2 ? -1 : 1; // away from the labels of the axis
      while (written.some((each) => Math.abs(each.y - y) < least)) y += step;
      written.push({ name, y });
      plot.ctx.fillStyle = resolved(limit.style);
      plot.ctx.fillText(name, left + width + 6 * devicePixelRatio, y);
    }
  }

  resize() {
    const width = this.holder.clientWidth;
    if (width && Math.abs(width - this.plot.width) > 1) this.draw();
  }

  // The texts of all shown series at a size.
  texts(place) {
    const { data } = this;
    const shown = data.series.filter((each, index) => !this.hidden.has(index) && each.texts[place]);
    const limits = this.measure === "rate" ? data.limits.filter((limit) => limit.rate[place] !== null).map((limit) => limit.name) : [];
    return [data.labels[place], ...shown.map((each) => each.texts[place]), ...limits].join("\n");
  }

  hover(plot) {
    const { idx, left, top } = plot.cursor;
    if (idx === null || idx === undefined || left < 0) { if (!this.byKey) hideTip(); return; }
    this.at = idx;
    const box = plot.over.getBoundingClientRect();
    showTip(this.texts(idx), box.left + left, box.top + Math.max(0, top));
  }

  leave() {
    this.byKey = false;
    hideTip();
  }

  key(event) {
    const last = this.data.sizes.length - 1;
    const to = { ArrowRight: Math.min(this.at + 1, last), ArrowLeft: Math.max(this.at - 1, 0), Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.leave();
    if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.byKey = true;
    this.at = to;
    const left = this.plot.valToPos(this.data.sizes[to], "x");
    this.plot.setCursor({ left, top: 10 });
    announcement.textContent = this.texts(to);
  }
}

if (typeof uPlot === "function") {
  for (const script of document.querySelectorAll("figure > script.data")) {
    const data = JSON.parse(script.textContent);
    if (data.kind === "sizes") new SizePlot(script.parentElement, data);
  }
}
