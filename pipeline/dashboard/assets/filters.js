// A row of filters, made of the browser's own fields.
import { h } from "vue";

const TYPING_MS = 250;

export default {
  props: { label: String, fields: Array, reset: Boolean },
  emits: ["change"],
  data() {
    return { values: Object.fromEntries(this.fields.map((field) => [field.key, field.value])) };
  },
  methods: {
    set(key, value, wait) {
      this.values[key] = value;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.$emit("change", { ...this.values }), wait);
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
    const used = Object.values(this.values).some((value) => value);
    const reset = h(
      "button",
      { type: "button", class: "ot-button", disabled: !used, onClick: this.clear },
      "Clear filters",
    );
    return h("form", {
      class: "ot-filters", role: "search", "aria-label": this.label,
      onSubmit: (event) => event.preventDefault(),
    }, [...this.fields.map(this.field), this.reset ? reset : null]);
  },
};
