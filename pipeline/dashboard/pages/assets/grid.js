// A table of live rows. The server sends which rows stand where, and then only what has changed.
import { h, nextTick } from "vue";
import { ago, chip, local, moment } from "/assets/shared.js";

const SEVERITY = ["none", "low", "high", "highest"];

function trail(severities) {
  const word = severities.map((severity) => SEVERITY[severity] ?? "?").join(", ");
  return h(
    "span",
    { class: "ot-trail", role: "img", "aria-label": `severities of the last steps: ${word}` },
    severities.map((severity) => h("span", { class: `ot-bar ot-bar-${severity}` })),
  );
}

function text(value) {
  // Isolated: writing from right to left stays in its cell.
  return h("bdi", { class: "ot-text", dir: "auto", title: value }, value);
}

const CELLS = {
  text: (value) => text(value),
  number: (value) => value,
  link: (value) => h("a", { href: local(value[1]) }, [text(value[0])]),
  verdict: (value) => (Array.isArray(value) ? chip(...value) : chip(value)),
  time: (value, now) => h("time", { title: moment(value) }, ago(value, now)),
  trail: (value) => trail(value),
  lines: (value) => value.map((line) => h("div", { class: "ot-line" }, [text(line)])),
  button: (value, _now, press) =>
    h("button", { type: "button", class: "ot-plain", onClick: press }, [text(value)]),
};

export default {
  props: { label: String, columns: Array, initial: Object, sort: Object, empty: Object },
  emits: ["sort", "press"],
  data() {
    const { order, rows } = this.initial;
    return { order, rows: new Map(rows), now: Date.now() };
  },
  mounted() {
    this.timer = setInterval(() => (this.now = Date.now()), 1000);
  },
  unmounted() {
    clearInterval(this.timer);
  },
  methods: {
    // JSON as text: parsed here, it cannot be taken for anything but data.
    apply(json) {
      const { order, rows } = JSON.parse(json);
      for (const [key, cells] of rows) this.rows.set(key, cells);
      if (order === undefined) return;
      const kept = new Set(order);
      for (const key of this.rows.keys()) if (!kept.has(key)) this.rows.delete(key);
      this.order = order;
      this.keepFocus();
    },
    // A row that moves is taken out and put in again, and a browser takes its focus away then.
    keepFocus() {
      const focused = document.activeElement;
      if (!this.$el.contains(focused) || !focused.closest("tbody")) return;
      nextTick(() => {
        if (focused.isConnected && document.activeElement === document.body)
          focused.focus({ preventScroll: true });
      });
    },
    open(event) {
      if (event.target.closest("a, button") || String(getSelection())) return;
      event.currentTarget.querySelector("a, button")?.click();
    },
    move(event) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
      const stops = [...this.$el.querySelectorAll("tbody tr")]
        .map((row) => row.querySelector("a, button"))
        .filter(Boolean);
      const here = stops.findIndex((stop) => stop.closest("tr").contains(document.activeElement));
      const next = stops[here + step];
      if (next === undefined) return;
      event.preventDefault();
      next.focus();
    },
    heading(column) {
      const sorted = this.sort?.key === column.sort && column.sort;
      const name = column.sort
        ? h("button", { type: "button", onClick: () => this.$emit("sort", column.sort) }, [
            column.label,
            h("span", { "aria-hidden": "true", class: "ot-arrow" }, this.arrow(sorted)),
          ])
        : column.label;
      const order = !sorted ? undefined : this.sort.descending ? "descending" : "ascending";
      const looks = [`ot-k-${column.kind}`, column.minor && "ot-minor"];
      return h("th", { scope: "col", class: looks, "aria-sort": order }, [name]);
    },
    arrow(sorted) {
      return !sorted ? "" : this.sort.descending ? " ▼" : " ▲";
    },
    cell(column, value, key) {
      const gone = value === null || value === undefined;
      const press = () => this.$emit("press", key);
      const content = gone ? "–" : CELLS[column.kind](value, this.now, press);
      const looks = [`ot-k-${column.kind}`, column.minor && "ot-minor", gone && "ot-gone"];
      return h("td", { class: looks, "data-label": column.label }, [content]);
    },
  },
  render() {
    const body = this.order.map((key) => {
      const cells = this.rows.get(key) ?? [];
      const content = this.columns.map((column, i) => this.cell(column, cells[i], key));
      return h("tr", { key, onClick: this.open }, content);
    });
    const table = h("table", { class: "ot-table", onKeydown: this.move }, [
      h("caption", { class: "ot-hidden" }, this.label),
      h("thead", [h("tr", this.columns.map(this.heading))]),
      h("tbody", body),
    ]);
    const nothing = h("div", { class: "ot-empty" }, [
      h("strong", this.empty.title),
      h("p", this.empty.text),
    ]);
    const region = { class: "ot-scroll", role: "region", "aria-label": this.label, tabindex: 0 };
    return h("div", { class: "ot-grid" }, [this.order.length ? h("div", region, [table]) : nothing]);
  },
};
