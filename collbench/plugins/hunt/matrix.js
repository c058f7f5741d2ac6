// Matrices of pairs: exact figures of a cell under the pointer and by the arrow keys. With many places the drawing shows groups. The
// picture below it has every pair and can be zoomed; a click on a cell of the drawing scrolls it to the pairs of that cell.

// Return the bytes that are packed in `data` (base64 of zlib).
async function unpacked(data) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

// The text of each cell: texts, the slowest first, and the number of the text of each cell. Each byte of a number has its own plane.
class Cells {
  static async of(data) {
    const [texts, codes] = await Promise.all([unpacked(data.texts), unpacked(data.codes)]);
    const [planes, n] = [new Uint8Array(codes), data.places.length];
    return Object.assign(new Cells(), { data, n, planes, texts: new TextDecoder().decode(texts).split("\n") });
  }

  code(row, column) {
    const [a, b] = this.data.symmetric && row > column ? [column, row] : [row, column];
    return [3, 2, 1, 0].reduce((code, plane) => code * 256 + this.planes[(plane * this.n + a) * this.n + b], 0);
  }

  pair(row, column) {
    const { places, joint } = this.data;
    return row === column ? `${places[row]} with itself: not measured` : `${places[row]} ${joint} ${places[column]}\n${this.texts[this.code(row, column)]}`;
  }

  // Return the number of pairs of two groups, and the slowest one.
  groups(row, column) {
    const { labels, joint, starts } = this.data;
    const places = (group) => Array.from({ length: (starts[group + 1] ?? this.n) - starts[group] }, (_, place) => starts[group] + place);
    const pairs = places(row).flatMap((a) => places(column).map((b) => [a, b]));
    if (pairs.length === 1) return this.pair(...pairs[0]);
    const others = pairs.filter(([a, b]) => a !== b);
    const slowest = others.reduce((one, other) => (this.code(...other) < this.code(...one) ? other : one));
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

// The picture of all pairs: scrolled, and zoomed around its middle.
class Whole {
  constructor(box, cells, drawing) {
    const picture = box.querySelector("img");
    Object.assign(this, { box, picture, cells, each: picture.width / cells }); // `each` in pixels
    box.setAttribute("aria-label", "every pair");
    const zoom = (sign, name, factor) => button(sign, () => this.scale(this.each * factor), { "aria-label": name });
    const hint = " every pair (scroll to move); click a cell above to find its pairs";
    drawing.append(element("p", { class: "zoom" }, zoom("−", "smaller", 0.5), zoom("+", "larger", 2), hint), box);
  }

  scale(each) {
    const { scrollLeft, clientWidth, scrollTop, clientHeight } = this.box;
    const [x, y] = [scrollLeft + clientWidth / 2, scrollTop + clientHeight / 2].map((far) => far / this.each);
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
  const [drawing, box, n] = [figure.querySelector(".drawing"), figure.querySelector(".matrix"), data.places.length];
  const grid = new Grid(drawing, drawing.querySelector("svg"), data.box, data.starts.length, async (row, column) => (await cells()).groups(row, column));
  if (!box) return;
  const whole = new Whole(box, n, drawing);
  new Grid(box, whole.picture, [0, 0, n], n, async (row, column) => (await cells()).pair(row, column));
  grid.picture.addEventListener("click", (event) => {
    const cell = grid.under(event);
    if (cell === null) return;
    const [y, x] = cell.map((group) => (data.starts[group] + (data.starts[group + 1] ?? n)) / 2);
    whole.scale(Math.max(whole.each, 4));
    whole.centre(x, y);
  });
}

if ("DecompressionStream" in window) eachChart("pairs", matrix);
