// A small line chart in SVG: up to two lines over the last minutes, and the numbers under the pointer.

import { element, shape } from "./elements.js";

const WIDTH = 240;
const HEIGHT = 72;
const BRIDGED = 5; // places without a value that a line goes across, since few things happen every second

/** A round number at or above `most`: the top of the axis. */
export function ceiling(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((step) => step * power).find((top) => top >= most * 0.999);
}

/** SVG path of `values` (null: none, and many of them a gap; a value alone: a dot), the newest at the right of `places` places. */
export function path(values, places, top) {
  let out = "";
  let last = -Infinity;
  values.forEach((value, index) => {
    if (value == null) return;
    const x = (((places - values.length + index) / (places - 1)) * WIDTH).toFixed(1);
    const y = (HEIGHT - 2 - (Math.min(value, top) / top) * (HEIGHT - 6)).toFixed(1);
    out += index - last <= BRIDGED + 1 ? `L${x} ${y}` : `M${x} ${y}l0.01 0`;
    last = index;
  });
  return out;
}

/** ["1 ms", "2 ms"] → "1 / 2 ms": a unit that all share stands once. */
export function together(told) {
  const units = told.map((text) => text.match(/[^\d.,–]*$/)[0]);
  const shared = told.length > 1 && units[0] && units.every((unit) => unit === units[0]);
  return shared ? told.map((text) => text.slice(0, -units[0].length)).join(" / ") + units[0] : told.join(" / ");
}

export class Chart {
  /** `lines`: [{name, of: sample → number or null}]; `show`: number → text; `top`: of the axis, where it is fixed. */
  constructor({ title, lines, show, top = null }, places) {
    Object.assign(this, { lines, show, top, places, samples: [], at: null });
    this.value = element("span", { class: "value" }, "–");
    this.axis = element("span", { class: "axis" });
    this.paths = lines.map((_, index) => shape("path", { class: `line line-${index}`, "vector-effect": "non-scaling-stroke" }));
    this.cursor = shape("line", { class: "cursor", y1: 0, y2: HEIGHT, x1: -9, x2: -9, "vector-effect": "non-scaling-stroke" });
    const drawing = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    drawing.append(shape("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }), ...this.paths, this.cursor);
    const frame = element("div", { class: "frame" }, drawing, this.axis);
    frame.addEventListener("pointermove", (event) => {
      const box = frame.getBoundingClientRect();
      this.at = Math.round(((event.clientX - box.left) / box.width) * (this.places - 1));
      this.tell();
    });
    frame.addEventListener("pointerleave", () => {
      this.at = null;
      this.tell();
    });
    const keys = lines.length < 2 ? null : element("span", { class: "keys" }, ...lines.map((line, index) => element("span", { class: `key key-${index}` }, line.name)));
    this.root = element("figure", { class: "tile" }, element("figcaption", {}, element("span", { class: "title" }, title), keys), this.value, frame);
  }

  draw(samples) {
    this.samples = samples.slice(-this.places);
    const all = this.lines.map((line) => this.samples.map(line.of));
    const top = this.top ?? ceiling(Math.max(0, ...all.flat().filter((value) => value != null)));
    all.forEach((values, index) => this.paths[index].setAttribute("d", path(values, this.places, top)));
    this.axis.textContent = this.show(top);
    this.tell();
  }

  tell() {
    const index = this.at == null ? this.samples.length - 1 : this.at - (this.places - this.samples.length);
    const sample = this.samples[index];
    const x = this.at == null || !sample ? -9 : (this.at / (this.places - 1)) * WIDTH;
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    const near = this.at == null ? this.samples.slice(-BRIDGED).reverse() : [sample].filter(Boolean);
    const told = this.lines.map((line) => this.show(near.map(line.of).find((value) => value != null)));
    const when = this.at == null || !sample ? "" : ` · ${new Date(sample.time * 1000).toLocaleTimeString("en-GB")}`;
    this.value.textContent = together(told) + when;
  }
}
