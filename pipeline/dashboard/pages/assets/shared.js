// What every component shares: how verdicts look, and text for people.
// Whatever agents wrote is handed to Vue as text or as an attribute's value, never as markup.
import { h } from "vue";

// Each verdict has a word, a tone and a sign of its own: none is told by its colour alone.
export const VERDICTS = {
  OK: ["ok", "M3 8.5l3.5 3.5L13 4.5"],
  EXPLORING: ["info", "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 1 0 8 1.8M10.5 5.5L9 9l-3.5 1.5L7 7z"],
  WARN: ["warn", "M8 2L14.5 13.5h-13zM8 6.2v3.4M8 11.4v.4"],
  LOOP: ["bad", "M13 8a5 5 0 1 1-1.6-3.7M13.2 1.8v3.4H9.8"],
  STALLED: ["bad", "M5.5 3v10M10.5 3v10"],
  CAUSAL_INVERSION: ["bad", "M2 5.5h11l-3-3M14 10.5H3l3 3"],
  OFF_TRACK: ["bad", "M3 14V9.5L12.5 3M8.5 2.5h4.5v4.5"],
  BLOCK: ["solid", "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 1 0 8 1.8M3.8 3.8l8.4 8.4"],
  // What became of a run, in small letters: its tone comes with it.
  succeeded: ["ok", "M4 14.5V2M4 2.5h9l-2.5 3 2.5 3H4"],
  failed: ["bad", "M3.5 3.5l9 9M12.5 3.5l-9 9"],
  halted: ["bad", "M5.4 1.8h5.2l3.6 3.6v5.2l-3.6 3.6H5.4l-3.6-3.6V5.4zM5 8h6"],
  cancelled: ["info", "M3 8h10"],
  ended: ["info", "M4 4h8v8H4z"],
};

export function sign(path) {
  return h("svg", { class: "ot-sign", viewBox: "0 0 16 16", "aria-hidden": "true" }, [
    h("path", { d: path }),
  ]);
}

export function chip(name, given) {
  const [own, path] = VERDICTS[name] ?? ["info", "M8 3v7M8 12.5v.5"];
  const tone = own === "solid" ? own : given ?? own;
  return h("span", { class: ["ot-chip", `ot-${tone}`] }, [sign(path), name.replaceAll("_", " ")]);
}

// Only pages of ours are linked to.
export function local(href) {
  return typeof href === "string" && /^\/(?![/\\])/.test(href) ? href : undefined;
}

export function ago(ms, now) {
  const s = Math.max(0, Math.round((now - ms) / 1000));
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} d ago`;
}

export function moment(ms) {
  return new Date(ms).toLocaleString();
}
