// Matrices of pairs: exact figures of a cell under the pointer and by the arrow keys. With many places the drawing shows groups. The
// picture below it has every pair and can be zoomed; a click on a cell of the drawing scrolls it to the pairs of that cell.

// Return the bytes that are packed in `data` (base64 of zlib).
async function unpacked(data) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The text of each cell: texts, the slowest first, and the number of the text of each cell. Each byte of a number has its own plane.
class Cells {
  static async of(data) {
    const [texts, planes] = await Promise.all([unpacked(data.texts), unpacked(data.codes)]);
    return new Cells(data, new TextDecoder().decode(texts).split("\n"), planes);
  }

  constructor(data, texts, planes) {
    Object.assign(this, { data, texts, planes, n: data.places.length });
  }

  code(row, column) {
    const [a, b] = this.data.symmetric && row > column ? [column, row] : [row, column];
    let code = 0;
    for (let plane = this.data.wide - 1; plane >= 0; plane--) code = code * 256 + this.planes[plane * this.n * this.n + a * this.n + b];
    return code;
  }

  pair(row, column) {
    const { places, joint } = this.data;
    return row === column ? `${places[row]} with itself: not measured` : `${places[row]} ${joint} ${places[column]}\n${this.texts[this.code(row, column)]}`;
  }

  // Return the places of a group: the first, and one past the last.
  span(group) {
    return [this.data.starts[group], this.data.starts[group + 1] ?? this.n];
  }

  // Return the number of pairs of two groups, and the slowest one.
  groups(row, column) {
    const [top, bottom] = this.span(row);
    const [left, right] = this.span(column);
    if (bottom - top === 1 && right - left === 1) return this.pair(top, left);
    let slowest = null;
    let pairs = 0;
    for (let a = top; a < bottom; a++) {
      for (let b = left; b < right; b++) {
        if (a === b) continue;
        pairs++;
        if (slowest === null || this.code(a, b) < this.code(...slowest)) slowest = [a, b];
      }
    }
    const { labels, joint } = this.data;
    const among = row === column ? `among ${labels[row]}` : `${labels[row]} ${joint} ${labels[column]}`;
    return `${among}: ${pairs} pairs, the slowest:\n${this.pair(...slowest)}`;
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

// The picture of all pairs: scrolled, and zoomed around its middle.
class Whole {
  constructor(box, cells, figure) {
    this.box = box;
    this.picture = box.querySelector("img");
    this.cells = cells;
    this.each = this.picture.width / cells; // pixels
    box.setAttribute("aria-label", "every pair");
    const buttons = document.createElement("p");
    buttons.className = "zoom";
    buttons.append(this.button("−", "smaller", 0.5), this.button("+", "larger", 2), " every pair (scroll to move); click a cell above to find its pairs");
    figure.querySelector(".drawing").append(buttons, box);
  }

  button(sign, name, factor) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: sign });
    button.setAttribute("aria-label", name);
    button.addEventListener("click", () => this.scale(this.each * factor));
    return button;
  }

  scale(each) {
    const middle = ["scrollLeft", "clientWidth", "scrollTop", "clientHeight"].map((name) => this.box[name]);
    const [x, y] = [middle[0] + middle[1] / 2, middle[2] + middle[3] / 2].map((far) => far / this.each);
    this.each = Math.max(0.5, Math.min(16, each));
    this.picture.width = this.picture.height = this.each * this.cells;
    this.centre(x, y);
  }

  centre(x, y) {
    this.box.scrollTo({ left: x * this.each - this.box.clientWidth / 2, top: y * this.each - this.box.clientHeight / 2, behavior: "instant" });
  }
}

function matrix(figure, data) {
  let values = null;
  const cells = () => (values ??= Cells.of(data));
  const drawing = figure.querySelector(".drawing");
  const grid = new Grid(drawing, drawing.querySelector("svg"), data.box, data.starts.length, async (row, column) => (await cells()).groups(row, column));
  const box = figure.querySelector(".matrix");
  if (!box) return;
  const n = data.places.length;
  const whole = new Whole(box, n, figure);
  new Grid(box, whole.picture, [0, 0, n], n, async (row, column) => (await cells()).pair(row, column));
  grid.picture.addEventListener("click", (event) => {
    const cell = grid.under(event);
    if (cell === null) return;
    const [y, x] = cell.map((group) => (data.starts[group] + (data.starts[group + 1] ?? n)) / 2);
    whole.scale(Math.max(whole.each, 4));
    whole.centre(x, y);
  });
}

if ("DecompressionStream" in window) {
  for (const script of document.querySelectorAll("figure > script.data")) {
    const data = JSON.parse(script.textContent);
    if (data.kind === "pairs") matrix(script.parentElement, data);
  }
}
