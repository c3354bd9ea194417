// Counts by minute as stacked bars, small; what they say stands beside them in words.
import { h } from "vue";

const HEIGHT = 40;

export default {
  props: { label: String, value: String, series: Array, summary: String },
  render() {
    const minutes = this.series[0]?.values.length ?? 0;
    const sums = Array.from({ length: minutes }, (_, i) =>
      this.series.reduce((sum, one) => sum + one.values[i], 0),
    );
    const top = Math.max(1, ...sums);
    const bars = [];
    for (let i = 0; i < minutes; i++) {
      let y = HEIGHT;
      for (const one of this.series) {
        const height = (one.values[i] / top) * HEIGHT;
        if (!height) continue;
        y -= height;
        bars.push(h("rect", { x: i * 4, y, width: 3, height, class: `ot-fill-${one.tone}` }));
      }
    }
    const box = `0 0 ${Math.max(1, minutes) * 4} ${HEIGHT}`;
    return h("figure", { class: "ot-spark" }, [
      h("figcaption", [h("span", this.label), h("strong", this.value)]),
      h("svg", { viewBox: box, preserveAspectRatio: "none", role: "img", "aria-label": this.summary }, bars),
      h("div", { class: "ot-legend", "aria-hidden": "true" },
        this.series.map((one) => h("span", { class: `ot-key ot-key-${one.tone}` }, one.name))),
    ]);
  },
};
