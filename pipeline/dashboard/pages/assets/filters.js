// A row of filters, made of the browser's own fields.
import { h } from "vue";

const TYPING_MS = 250;
const NARROW = window.matchMedia("(max-width: 640px)"); // as in dashboard.css

export default {
  props: { label: String, fields: Array, reset: Boolean, folds: Boolean },
  emits: ["change"],
  data() {
    const values = Object.fromEntries(this.fields.map((field) => [field.key, field.value]));
    return { values, open: !NARROW.matches };
  },
  mounted() {
    NARROW.addEventListener("change", this.fit);
  },
  unmounted() {
    NARROW.removeEventListener("change", this.fit);
  },
  methods: {
    set(key, value, wait) {
      this.values[key] = value;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.$emit("change", { ...this.values }), wait);
    },
    put(key, value) {
      this.values[key] = value;
    },
    fit() {
      this.open = !NARROW.matches;
    },
    clear() {
      for (const field of this.fields) this.values[field.key] = "";
      this.$emit("change", { ...this.values });
    },
    field(field) {
      const id = `filter-${field.key}`;
      const value = this.values[field.key];
      const options = (field.options ?? []).map(([option, name]) =>
        h("option", { value: option, selected: option === value }, name),
      );
      if (value && !(field.options ?? []).some(([option]) => option === value)) {
        options.push(h("option", { value, selected: true }, value)); // of a link, not seen yet
      }
      const control =
        field.kind === "search"
          ? h("input", {
              id, value, type: "search", autocomplete: "off", spellcheck: false,
              placeholder: field.hint,
              onInput: (event) => this.set(field.key, event.target.value, TYPING_MS),
            })
          : h("select", { id, value, onChange: (event) => this.set(field.key, event.target.value, 0) }, options);
      return h("div", { class: `ot-field ot-field-${field.kind}`, key: field.key }, [
        h("label", { for: id }, field.label),
        control,
      ]);
    },
  },
  render() {
    const used = Object.values(this.values).filter((value) => value).length;
    const reset = h(
      "button",
      { type: "button", class: "ot-button", disabled: !used, onClick: this.clear },
      "Clear filters",
    );
    const form = h("form", {
      class: "ot-filters", role: "search", "aria-label": this.label,
      onSubmit: (event) => event.preventDefault(),
    }, [...this.fields.map(this.field), this.reset ? reset : null]);
    if (!this.folds) return form;
    const told = { open: this.open, onToggle: (event) => (this.open = event.target.open) };
    return h("details", { class: "ot-fold", ...told }, [
      h("summary", used ? `${this.label} (${used} set)` : this.label),
      form,
    ]);
  },
};
