// What the chart of an operation offers besides its picture: zoom of both axes, downloads, and its state in the address of the page.
// The functions are called by the chart in sizes.js. The state of a chart: its measure, whether its axis is logarithmic, the hidden
// series, and the zoom: `x` and `y` are [low, high] of the axis, or null where nothing is zoomed.

const ADDRESS = "?"; // after the id of a chart in the fragment of the address, before its state
const LOOKS = { rate: "bandwidth", time: "time" };

// Zoom to the part that was selected by dragging: along the axis of the sizes, of the values, or both.
function zoomToSelection(chart) {
  const { plot } = chart;
  const { left, top, width, height } = plot.select;
  if (width < 4 && height < 4) return;
  const { clientWidth, clientHeight } = plot.over;
  if (width < clientWidth) chart.zoom.x = [left, left + width].map((pixels) => plot.posToVal(pixels, "x"));
  if (height < clientHeight) chart.zoom.y = [top + height, top].map((pixels) => plot.posToVal(pixels, "y"));
  chart.change();
}

// Show the zoomed part of a chart that was drawn again.
function showZoom({ plot, zoom }) {
  plot.batch(() => {
    for (const [scale, ends] of Object.entries(zoom)) if (ends) plot.setScale(scale, { min: ends[0], max: ends[1] });
  });
}

// Return the buttons to download a chart, and the hint how to zoom.
function chartTools(chart) {
  const name = chart.title.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "chart";
  const csv = button("CSV", () => download(new Blob([valuesOf(chart)], { type: "text/csv" }), `${name}.csv`), { "aria-label": "download the values as CSV" });
  const png = button("PNG", () => pictureOf(chart).toBlob((blob) => download(blob, `${name}.png`)), { "aria-label": "download the picture as PNG" });
  const hint = element("span", { class: "hint" }, "drag across to zoom into sizes, up or down into values");
  return [element("span", { role: "group", "aria-label": "download" }, csv, png), hint];
}

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// Return a text for CSV that no spreadsheet runs as a formula.
function field(text) {
  const safe = /^[=+\-@＝＋－＠\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

// Return the values of the shown series as CSV: a line for each series and size; unknown values are empty.
function valuesOf({ data, hidden }) {
  const names = ["rate", "rateLow", "rateHigh", "rateExpected", "time", "timeLow", "timeHigh", "timeExpected"];
  const columns = ["busbw_gb_per_s", "busbw_low", "busbw_high", "busbw_expected", "time_us", "time_low", "time_high", "time_expected"];
  const lines = [["series", "size_bytes", ...columns, "state"].join(",")];
  data.series.forEach((series, index) => {
    if (hidden.has(index)) return;
    data.sizes.forEach((size, place) => {
      const values = names.map((name) => series[name]?.[place] ?? "");
      if (values.some((value) => value !== "")) lines.push([field(series.name), size, ...values, series.states[place] ?? ""].join(","));
    });
  });
  return `${lines.join("\n")}\n`;
}

// Return a canvas with the picture of a chart, its title, and the shown series.
function pictureOf(chart) {
  const source = chart.plot.ctx.canvas;
  const canvas = element("canvas", { width: source.width });
  const ctx = canvas.getContext("2d");
  const [font, bold, line] = [`12px system-ui, sans-serif`, "bold 14px system-ui, sans-serif", 20];
  const [ink, paper] = ["ink", "paper"].map(resolved);
  const width = source.width / devicePixelRatio;
  ctx.font = font;
  const places = []; // [x, y, name, look] of each shown series
  let [x, y] = [10, 2 * line];
  chart.data.series.forEach(({ name }, index) => {
    if (chart.hidden.has(index)) return;
    const wide = 44 + ctx.measureText(name).width;
    if (x > 10 && x + wide > width) [x, y] = [10, y + line];
    places.push([x, y, name, chart.look(index)]);
    x += wide;
  });
  const top = y + line / 2;
  canvas.height = source.height + top * devicePixelRatio; // this resets the context
  ctx.fillStyle = paper;
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.drawImage(source, 0, top * devicePixelRatio);
  ctx.scale(devicePixelRatio, devicePixelRatio);
  Object.assign(ctx, { font: bold, fillStyle: ink, textBaseline: "middle", lineWidth: 2 });
  ctx.fillText(chart.title, 10, line / 2 + 4, width - 20);
  ctx.font = font;
  for (const [left, middle, name, look] of places) {
    ctx.strokeStyle = look.stroke;
    ctx.setLineDash(look.dash);
    ctx.stroke(new Path2D(`M${left} ${middle}h26`));
    ctx.fillText(name, left + 32, middle);
  }
  return canvas;
}

// The state of charts in the fragment of the address: "#curves-0?show=time&axis=log&hidden=1.3&x=64_4096;curves-1?…".

// Return the states in the address by the id of the chart.
function statesInAddress() {
  const parts = location.hash.slice(1).split(";").filter((part) => part.includes(ADDRESS));
  return new Map(parts.map((part) => [decodeURIComponent(part.split(ADDRESS)[0]), new URLSearchParams(part.slice(part.indexOf(ADDRESS) + 1))]));
}

// Write the state of a chart to the address; one that is as in the beginning is left out.
function keepState(chart) {
  const { id, data, measure, log, hidden, zoom } = chart;
  const state = new URLSearchParams();
  if (measure !== (data.rate ? "rate" : "time")) state.set("show", LOOKS[measure]);
  if (log !== (measure === "time")) state.set("axis", log ? "log" : "linear");
  if (hidden.size) state.set("hidden", [...hidden].sort((one, other) => one - other).join("."));
  for (const [axis, ends] of Object.entries(zoom)) if (ends) state.set(axis, ends.map((end) => +end.toPrecision(6)).join("_"));
  const states = statesInAddress();
  states.delete(id);
  if ([...state].length) states.set(id, state);
  const fragment = [...states].map(([key, value]) => `${encodeURIComponent(key)}${ADDRESS}${value}`).join(";");
  history.replaceState(null, "", location.href.split("#")[0] + (fragment && `#${fragment}`));
}

// Take the state of a chart from the address; what is not valid there is ignored. Return whether the address has it.
function takeState(chart) {
  const state = statesInAddress().get(chart.id);
  if (!state) return false;
  const { data } = chart;
  const measure = Object.keys(LOOKS).find((key) => LOOKS[key] === state.get("show"));
  chart.measure = data.rate ? measure ?? "rate" : "time";
  chart.log = { log: true, linear: false }[state.get("axis")] ?? chart.measure === "time";
  chart.hidden = new Set((state.get("hidden") ?? "").split(".").filter((text) => /^\d+$/.test(text)).map(Number).filter((index) => index < data.series.length));
  for (const axis of ["x", "y"]) {
    const [low, high] = (state.get(axis) ?? "").split("_").map(Number);
    const isValid = Number.isFinite(low) && Number.isFinite(high) && low < high && (low > 0 || (axis === "y" && !chart.log));
    chart.zoom[axis] = isValid ? [low, high] : null;
  }
  return true;
}
