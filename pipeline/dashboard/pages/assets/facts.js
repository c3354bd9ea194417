// Names and values, as a list of definitions.
import { h } from "vue";
import { chip, local } from "/assets/shared.js";

function shown([, value, kind, href]) {
  if (kind === "verdict") return chip(value);
  const text = h("bdi", { dir: "auto", class: kind === "words" && "ot-words" }, value);
  return local(href) ? h("a", { href }, [text]) : text;
}

export default {
  props: { items: Array, compact: Boolean },
  render() {
    const pairs = this.items.map((item) => h("div", [h("dt", item[0]), h("dd", [shown(item)])]));
    return h("dl", { class: ["ot-facts", this.compact && "ot-compact"] }, pairs);
  },
};
