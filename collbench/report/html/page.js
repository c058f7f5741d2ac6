"use strict";
// The page is complete without this script. It adds: exact values under the pointer and by the arrow keys, the choice of light or
// dark, folded sections that open when a link names them. The scripts that follow use what is defined here.

const tip = document.getElementById("tip");
const announcement = document.getElementById("announcement");

// Show a text beside a point of the window, where it fits.
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const left = x + 14 + tip.offsetWidth > innerWidth ? x - 14 - tip.offsetWidth : x + 14;
  tip.style.left = `${Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - tip.offsetHeight - 4))}px`;
}

function hideTip() {
  tip.hidden = true;
  for (const mark of document.querySelectorAll(".here")) mark.remove();
}

// On a touch screen the tip stays until the next touch. A wheel moves the drawing away, so it hides the tip.
addEventListener("pointerdown", hideTip, { capture: true });
addEventListener("wheel", hideTip, { capture: true, passive: true });

// Return a new element with attributes and children.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function button(text, act, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", act);
  return made;
}

// Call `make` with the figure and the data of each chart of a kind.
function eachChart(kind, make) {
  for (const script of document.querySelectorAll("figure > script.data")) {
    const data = JSON.parse(script.textContent);
    if (data.kind === kind) make(script.parentElement, data);
  }
}

// Return a rate as Python writes it: three digits.
function rateText(rate) {
  if (rate >= 100) return rate.toFixed(0);
  if (rate >= 1e-4) return rate.toPrecision(3);
  return rate >= 0.000005 ? rate.toFixed(5) : "<0.00001";
}

// Return where a drawing (SVG or canvas) is in the window, and how many pixels of the window one of its units has.
function within(picture) {
  const box = picture.getBoundingClientRect();
  const units = picture.viewBox ? picture.viewBox.baseVal.width : picture.width;
  return { left: box.left, top: box.top, scale: box.width / units };
}

// Return the place in a row of places that a key leads to, or null.
function along(key, at, last) {
  return { ArrowRight: Math.min(at + 1, last), ArrowLeft: Math.max(at - 1, 0), Home: 0, End: last }[key] ?? null;
}

// A picture with places that are shown under the pointer and by the arrow keys. A subclass has nearest(x, y, scale) and step(key), which
// return a place or null; text(place); and box(place): middle, width and height, in the picture's units.
class Walk {
  constructor(focus, picture, what, surface = focus) {
    Object.assign(this, { focus, picture, at: null });
    focus.tabIndex = 0;
    focus.setAttribute("role", "application");
    focus.setAttribute("aria-roledescription", what);
    for (const kind of ["pointermove", "pointerdown"]) surface.addEventListener(kind, (event) => this.point(event));
    surface.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") this.leave(); });
    focus.addEventListener("blur", () => this.leave());
    focus.addEventListener("keydown", (event) => this.key(event));
  }

  // Return the place under the pointer, or null.
  under(event) {
    const { left, top, scale } = within(this.picture);
    return this.nearest((event.clientX - left) / scale, (event.clientY - top) / scale, scale);
  }

  point(event) {
    const place = this.under(event);
    if (place === null) this.leave();
    else this.show(place, false);
  }

  leave() {
    hideTip();
  }

  key(event) {
    if (event.target !== this.focus || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") this.leave();
    const place = this.step(event.key);
    if (place === null) return;
    event.preventDefault();
    this.show(place, true);
  }

  show(place, byKey) {
    this.at = place;
    const text = this.text(place);
    hideTip();
    const { scale } = within(this.picture);
    const mark = element("span", { class: `here ${this.kind}` });
    this.box(place).forEach((units, number) => { mark.style[["left", "top", "width", "height"][number]] = `${units * scale}px`; });
    this.picture.after(mark);
    if (byKey) mark.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    const { right, bottom } = mark.getBoundingClientRect();
    showTip(text, right - 6, bottom - 6);
    if (byKey) announcement.textContent = text;
  }
}

class Points extends Walk {
  constructor(figure, spots) {
    const drawing = figure.querySelector(".drawing");
    super(drawing, drawing.querySelector("svg"), "chart; use the arrow keys to go from point to point");
    Object.assign(this, { kind: "spot", spots }); // [x, y, text] each, in the drawing's units
  }

  text(place) { return this.spots[place][2]; }
  box(place) { return this.spots[place].slice(0, 2); }

  // Return the nearest point within 40 pixels.
  nearest(x, y, scale) {
    const far = this.spots.map((spot) => Math.hypot(spot[0] - x, spot[1] - y));
    const nearest = far.indexOf(Math.min(...far));
    return far[nearest] * scale > 40 ? null : nearest;
  }

  step(key) {
    const way = { ArrowUp: -1, ArrowDown: 1 }[key];
    return way ? this.beside(way) : along(key, this.at ?? -1, this.spots.length - 1);
  }

  // Return the next point above (-1) or below (1) at the same x; the current point if there is none.
  beside(way) {
    if (this.at === null) return 0;
    const [x, y] = this.spots[this.at];
    const ahead = this.spots.map((spot, index) => [way * (spot[1] - y), index]).filter(([far, index]) => far > 0 && Math.abs(this.spots[index][0] - x) < 1);
    return ahead.length ? ahead.sort((one, other) => one[0] - other[0])[0][1] : this.at;
  }
}

for (const list of document.querySelectorAll("figure > script.spots")) new Points(list.parentElement, JSON.parse(list.textContent));

// Light or dark: as in the system, until the button is pressed.
const theme = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
const nameTheme = () => { theme.textContent = isDark() ? "☀ Light" : "☾ Dark"; };
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
prefersDark.addEventListener("change", nameTheme);
nameTheme();
theme.hidden = false;

// Open the folded sections that a link or the address names ("#curves", or charts with their state: "#sizes-0?…;sizes-1?…"), and every
// part around them.
function openNamed() {
  const ids = location.hash.slice(1).split(";").map((part) => decodeURIComponent(part.split("?")[0]));
  const named = ids.map((id) => document.getElementById(id)).filter((each) => each !== null);
  for (const each of named) for (let part = each; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  named[0]?.scrollIntoView();
}
addEventListener("hashchange", openNamed);
if (location.hash) openNamed();
