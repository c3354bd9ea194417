// An Apache ECharts chart that takes its colours from the page, in light and in dark.
// Options are data: nothing in them is evaluated, and tooltips are drawn, not marked up.
import { h } from "vue";
import { echarts } from "nicegui-echart";

// "--name" as a colour stands for the page's variable of that name.
function coloured(value, style) {
  if (Array.isArray(value)) return value.map((item) => coloured(item, style));
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).map(([key, item]) => {
    const isColour = key === "color" || key.endsWith("Color");
    if (isColour && Array.isArray(item)) return [key, item.map((one) => colour(one, style))];
    return [key, isColour && typeof item === "string" ? colour(item, style) : coloured(item, style)];
  });
  return Object.fromEntries(entries);
}

function colour(name, style) {
  return typeof name === "string" && name.startsWith("--") ? style.getPropertyValue(name).trim() : name;
}

export default {
  props: { options: Object, label: String, width: Number, height: Number },
  emits: ["pick"],
  mounted() {
    this.sizes = new ResizeObserver(() => (this.chart ? this.chart.resize() : this.draw()));
    this.sizes.observe(this.$refs.canvas);
    this.themes = new MutationObserver(this.draw);
    this.themes.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.draw();
  },
  updated() {
    this.draw();
  },
  beforeUnmount() {
    this.sizes.disconnect();
    this.themes.disconnect();
    this.chart?.dispose();
  },
  methods: {
    begin() {
      this.chart = echarts.init(this.$refs.canvas, null, { renderer: "canvas" });
      this.chart.on("click", (event) => this.$emit("pick", event.data?.pick ?? null));
    },
    draw() {
      if (!this.$refs.canvas.offsetWidth) return; // hidden: drawn once it has a size
      if (!this.chart) this.begin();
      const style = getComputedStyle(document.body);
      const options = coloured(JSON.parse(JSON.stringify(this.options)), style);
      options.tooltip = { ...options.tooltip, renderMode: "richText", confine: true };
      options.animation = false;
      this.chart.setOption(options, { notMerge: true });
    },
  },
  render() {
    const style = { width: this.width ? `max(100%, ${this.width}px)` : "100%", height: `${this.height}px` };
    return h("div", { class: "ot-scroll", tabindex: 0, role: "img", "aria-label": this.label }, [
      h("div", { ref: "canvas", style }),
    ]);
  },
};
