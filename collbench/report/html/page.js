"use strict";
// The page is complete without this script. It adds: exact values under the pointer and by the arrow keys, the choice of light or
// dark, folded sections that open when a link names them. The scripts that follow use `showTip`, `hideTip` and `within`.

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

// Return where a drawing (SVG or image) is in the window, and how many pixels of the window one of its units has.
function within(picture) {
  const box = picture.getBoundingClientRect();
  const units = picture.viewBox ? picture.viewBox.baseVal.width : picture.naturalWidth;
  return { left: box.left, top: box.top, scale: box.width / units };
}

class Walk {
  constructor(figure, spots) {
    this.spots = spots; // [x, y, text] each, in the drawing's units
    this.at = -1;
    this.drawing = figure.querySelector(".drawing");
    this.picture = this.drawing.querySelector("svg");
    this.drawing.tabIndex = 0;
    this.drawing.setAttribute("role", "application");
    this.drawing.setAttribute("aria-roledescription", "chart; use the arrow keys to go from point to point");
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerdown", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hideTip(); });
    this.drawing.addEventListener("blur", hideTip);
    this.drawing.addEventListener("keydown", (event) => this.key(event));
  }

  // Show the nearest point within 40 pixels of the pointer.
  point(event) {
    const { left, top, scale } = within(this.picture);
    const x = (event.clientX - left) / scale;
    const y = (event.clientY - top) / scale;
    const far = this.spots.map((spot) => Math.hypot(spot[0] - x, spot[1] - y));
    const nearest = far.indexOf(Math.min(...far));
    if (far[nearest] * scale > 40) hideTip();
    else this.show(nearest, false);
  }

  key(event) {
    const last = this.spots.length - 1;
    const steps = {
      ArrowRight: () => Math.min(this.at + 1, last),
      ArrowLeft: () => Math.max(this.at - 1, 0),
      ArrowUp: () => this.beside(-1),
      ArrowDown: () => this.beside(1),
      Home: () => 0,
      End: () => last,
    };
    if (event.key === "Escape") hideTip();
    if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.show(steps[event.key](), true);
    announcement.textContent = tip.textContent;
  }

  // Return the next point above (-1) or below (1) at the same x; the current point if there is none.
  beside(way) {
    if (this.at < 0) return 0;
    const [x, y] = this.spots[this.at];
    const order = this.spots.map((spot, index) => [way * (spot[1] - y), index]);
    const there = order.filter(([ahead, index]) => Math.abs(this.spots[index][0] - x) < 1 && ahead > 0);
    return there.length ? there.sort((one, other) => one[0] - other[0])[0][1] : this.at;
  }

  show(index, follow) {
    hideTip();
    this.at = index;
    const [x, y, text] = this.spots[index];
    const mark = document.createElement("span");
    mark.className = "here";
    const units = within(this.picture);
    mark.style.left = `${x * units.scale}px`;
    mark.style.top = `${y * units.scale}px`;
    this.picture.after(mark);
    if (follow) mark.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    const now = within(this.picture);
    showTip(text, now.left + x * now.scale, now.top + y * now.scale);
  }
}

for (const list of document.querySelectorAll("figure > script.spots")) new Walk(list.parentElement, JSON.parse(list.textContent));

// Light or dark: as in the system, until the button is pressed.
const button = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
const nameButton = () => { button.textContent = isDark() ? "☀ Light" : "☾ Dark"; };
button.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameButton();
});
prefersDark.addEventListener("change", nameButton);
nameButton();
button.hidden = false;

// Open a folded section that a link or the address names, and every part around it.
function openNamed() {
  let part = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}
addEventListener("hashchange", openNamed);
if (location.hash) openNamed();
