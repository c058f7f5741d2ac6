// Matrices of pairs: the figures of a cell under the pointer and by the arrow keys. With many places the drawing shows groups. A canvas
// below it has every pair and can be zoomed; a click on a cell of the drawing scrolls it to the pairs of that cell.

// A time in microseconds as units.py writes it, to four digits.
function timeText(micros) {
  return micros.toFixed(micros >= 1 ? Math.max(0, 4 - String(Math.trunc(micros)).length) : 4);
}

// The numbers of a bandwidth or a latency, and their texts and colors. `_data` in pairs.py describes them.
class Cells {
  constructor(data) {
    Object.assign(this, data);
    this.n = data.places.length;
    this.wrong = new Map(data.wrong.map(([row, column, elements]) => [row * this.n + column, elements]));
    this.again = new Set(data.again.flatMap(([row, column]) => [row * this.n + column, column * this.n + row]));
  }

  // Return the number of a pair in `values`, or one of its bounds; null if it was not measured.
  value(row, column, values = this.values) {
    if (!this.symmetric) return values[row][column];
    const [first, second] = row < column ? [row, column] : [column, row];
    return values[first][second - first - 1];
  }

  // Return the value / the median of such paths; null if one of them is unknown.
  ratio(row, column) {
    const value = this.value(row, column);
    const median = this.medians[this.hosts[row] === this.hosts[column] ? 1 : 0];
    return value > 0 && median > 0 ? value / median : null;
  }

  // Return how many times as fast as the median a pair is; Infinity if that is unknown.
  speed(row, column) {
    const ratio = this.ratio(row, column);
    if (ratio === null) return Infinity;
    return this.symmetric ? 1 / ratio : ratio;
  }

  ratioText(ratio) {
    if (this.symmetric) return `${ratio.toFixed(2)} times ${this.median}`;
    const percent = 100 * ratio;
    return `${percent.toFixed(percent < 9.95 ? 1 : 0)} % of ${this.median}`;
  }

  // Return value, interval, ratio to the median, wrong elements, and whether the pair was measured again.
  text(row, column) {
    const [value, ratio] = [this.value(row, column), this.ratio(row, column)];
    const figure = this.symmetric ? timeText : rateText;
    const texts = ["not measured"];
    if (value !== null) {
      const ends = this.bounds.map((bound) => this.value(row, column, bound)).filter((end) => end !== null);
      const interval = ends.length === 2 ? ` (${ends.map(figure).join("–")})` : "";
      texts[0] = `${figure(value)}${interval} ${this.unit}${ratio === null ? "" : `, ${this.ratioText(ratio)}`}`;
    }
    const [key, wrong] = [row * this.n + column, this.wrong.get(row * this.n + column)];
    if (wrong) texts.push(`wrong data: ${wrong.toLocaleString("en")} ${wrong === 1 ? "element" : "elements"}`);
    if (value !== null && this.again.has(key)) texts.push("measured twice, the faster result counts");
    return texts.join("; ");
  }

  pair(row, column) {
    if (row === column) return `${this.places[row]} with itself: not measured`;
    return `${this.places[row]} ${this.joint} ${this.places[column]}\n${this.text(row, column)}`;
  }

  // Return the color of a pair; null if it was not measured. Each class below the median is twice as deep as the one before; the last color: wrong data.
  color(row, column) {
    if (row === column) return null;
    if (this.wrong.has(row * this.n + column)) return this.colors.at(-1);
    const speed = this.speed(row, column);
    if (speed === Infinity) return null;
    const depth = Math.floor(Math.log2(Math.max(-Math.log(speed) / this.step, 0.5))) + 1;
    return this.colors[Math.min(depth, this.colors.length - 2)];
  }

  // Return the number of pairs of two groups, and the slowest one.
  groups(row, column) {
    const { labels, joint, starts } = this;
    const places = (group) => Array.from({ length: (starts[group + 1] ?? this.n) - starts[group] }, (_, place) => starts[group] + place);
    const pairs = places(row).flatMap((a) => places(column).map((b) => [a, b]));
    if (pairs.length === 1) return this.pair(...pairs[0]);
    const others = pairs.filter(([a, b]) => a !== b);
    const slowest = others.reduce((one, other) => (this.speed(...other) < this.speed(...one) ? other : one));
    const among = row === column ? `among ${labels[row]}` : `${labels[row]} ${joint} ${labels[column]}`;
    return `${among}: ${others.length} pairs, the slowest:\n${this.pair(...slowest)}`;
  }
}

// A square picture of rows × rows cells. square: its left, top and side in the units of `picture`; label(row, column): the text of a cell.
class Grid extends Walk {
  constructor(focus, picture, square, rows, label) {
    super(focus, picture, "matrix; use the arrow keys to go from cell to cell", picture);
    Object.assign(this, { kind: "cell", square, rows, label });
  }

  text(cell) { return this.label(...cell); }

  nearest(x, y) {
    const [left, top, side] = this.square;
    const cell = [y - top, x - left].map((far) => Math.floor((far / side) * this.rows));
    return cell.every((each) => each >= 0 && each < this.rows) ? cell : null;
  }

  step(key) {
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -this.rows], End: [0, this.rows] };
    if (!(key in steps)) return null;
    return this.at === null ? [0, 0] : this.at.map((each, way) => Math.max(0, Math.min(this.rows - 1, each + steps[key][way])));
  }

  box([row, column]) {
    const [left, top, side] = this.square;
    const size = side / this.rows;
    return [left + (column + 0.5) * size, top + (row + 0.5) * size, size, size];
  }
}

// The picture of all pairs, a pixel of a canvas each: scrolled, and zoomed around its middle.
class Whole {
  constructor(figure, cells) {
    const title = `${figure.querySelector("figcaption > :first-child").textContent}, every pair`;
    this.canvas = element("canvas", { width: cells.n, height: cells.n, role: "img", "aria-label": title });
    this.box = element("div", { class: "matrix", "aria-label": "every pair" }, this.canvas);
    const zoom = (sign, name, factor) => button(sign, () => this.scale(this.side * factor), { "aria-label": name });
    const hint = " every pair (scroll to move); click a cell above to find its pairs";
    figure.querySelector(".drawing").append(element("p", { class: "zoom" }, zoom("−", "smaller", 0.5), zoom("+", "larger", 2), hint), this.box);
    this.paint(cells);
    this.resize(2);
  }

  paint(cells) {
    const image = new ImageData(cells.n, cells.n);
    const pixels = new Map(cells.colors.map((color) => [color, [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)).concat(255)]));
    for (let row = 0; row < cells.n; row++) {
      for (let column = 0; column < cells.n; column++) {
        const color = cells.color(row, column);
        if (color !== null) image.data.set(pixels.get(color), 4 * (row * cells.n + column));
      }
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
  }

  // Set the side of a cell in pixels of the page.
  resize(side) {
    this.side = side;
    this.canvas.style.width = this.canvas.style.height = `${side * this.canvas.width}px`;
  }

  scale(side) {
    const { scrollLeft, clientWidth, scrollTop, clientHeight } = this.box;
    const [x, y] = [scrollLeft + clientWidth / 2, scrollTop + clientHeight / 2].map((far) => far / this.side);
    this.resize(Math.max(0.5, Math.min(16, side)));
    this.centre(x, y);
  }

  centre(x, y) {
    this.box.scrollTo({ left: x * this.side - this.box.clientWidth / 2, top: y * this.side - this.box.clientHeight / 2, behavior: "instant" });
  }
}

eachChart("pairs", (figure, data) => {
  const [cells, drawing, groups] = [new Cells(data), figure.querySelector(".drawing"), data.starts.length];
  const grid = new Grid(drawing, drawing.querySelector("svg"), data.box, groups, (row, column) => cells.groups(row, column));
  if (groups === cells.n) return;
  const whole = new Whole(figure, cells);
  new Grid(whole.box, whole.canvas, [0, 0, cells.n], cells.n, (row, column) => cells.pair(row, column));
  grid.picture.addEventListener("click", (event) => {
    const cell = grid.under(event);
    if (cell === null) return;
    const [y, x] = cell.map((group) => (data.starts[group] + (data.starts[group + 1] ?? cells.n)) / 2);
    whole.scale(Math.max(whole.side, 4));
    whole.centre(x, y);
  });
});
