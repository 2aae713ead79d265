// Elements whose contents are always text: nothing of a model or a server is ever read as HTML.

/** element("p", {class: "note"}, "text", child, …) */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function shape(name, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** 12345.6 → "12.3 k"; small numbers keep three digits. */
export function short(value) {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toPrecision(3)} G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)} k`;
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  while (value >= 1000 && index < units.length - 1) {
    value /= 1000;
    index += 1;
  }
  return `${index ? value.toPrecision(3) : value} ${units[index]}`;
}
