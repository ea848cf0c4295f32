"use strict";
(() => {
  const NS = 1e9;
  const MAX_MARKS = 300; // First bytes up to which each is marked.
  const MAX_BARS = 100; // Calls that the waterfall shows at once.
  const data = JSON.parse(document.getElementById("occupancy-data").textContent);
  const root = document.documentElement;
  const element = (id) => document.getElementById(id);
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  // ---- Numbers

  function decode(text, type) {
    if (text === null) return null;
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    return new type(bytes.buffer);
  }

  /** As the page's numbers: three digits with a unit. */
  function duration(ns) {
    const units = [["ns", 1], ["us", 1e3], ["ms", 1e6], ["s", 1e9]];
    const [unit, size] = units.find(([name, each]) => ns / each < 999.5 || name === "s");
    const value = ns / size;
    return `${unit === "ns" || value >= 99.95 ? value.toFixed(0) : value.toPrecision(3)} ${unit}`;
  }

  /** A moment, told as finely as the view can show. */
  function moment(ns, span) {
    const digits = Math.min(Math.max(Math.ceil(-Math.log10(span / NS)) + 3, 0), 9);
    return `${(ns / NS).toFixed(digits)} s`;
  }

  // ---- A step function: exact, or the lowest and highest level in each slot

  /** How many of the ascending values are at most `at`. */
  function upto(values, at) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= at) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  class Curve {
    constructor(curve) {
      this.t = decode(curve.t, Float64Array);
      this.highest = decode(curve.highest, Int32Array);
      this.lowest = decode(curve.lowest, Int32Array) || this.highest;
      this.slot = curve.lowest === null ? 0 : this.t[1] - this.t[0]; // ns that one value stands for
    }

    /** Lowest and highest level for from <= t < to. */
    range(from, to) {
      let step = upto(this.t, from) - 1;
      let lowest = step < 0 ? 0 : this.lowest[step], highest = step < 0 ? 0 : this.highest[step];
      for (step += 1; step < this.t.length && this.t[step] < to; step++) {
        lowest = Math.min(lowest, this.lowest[step]);
        highest = Math.max(highest, this.highest[step]);
      }
      return [lowest, highest];
    }

    /** What to draw of a view in so many pixels: each step where they have room, else an envelope of the pixels. */
    points([from, to], pixels) {
      const first = Math.max(upto(this.t, from) - 1, 0), last = Math.min(upto(this.t, to), this.t.length - 1);
      const x = [], lowest = [], highest = [];
      const add = (t, low, high) => { x.push(t / NS); lowest.push(low); highest.push(high); };
      if (this.t.length && this.t[0] >= from) add(this.t[0], 0, 0); // rises from 0
      if (last - first <= 2 * pixels) {
        for (let step = first; step <= last; step++) add(this.t[step], this.lowest[step], this.highest[step]);
      } else {
        for (let pixel = 0; pixel < pixels; pixel++) {
          const at = from + (to - from) * pixel / pixels;
          add(at, ...this.range(at, from + (to - from) * (pixel + 1) / pixels));
        }
      }
      return { x, lowest, highest };
    }
  }

  class Marks {
    constructor(marks) {
      this.t = decode(marks.t, Float64Array);
      this.n = decode(marks.n, Int32Array);
    }

    count(from, to) {
      const first = upto(this.t, from - 1e-3), last = upto(this.t, to - 1e-3);
      return this.n === null ? last - first : this.n.subarray(first, last).reduce((sum, n) => sum + n, 0);
    }

    /** Times in a view; none where they are too many to be told apart. */
    within([from, to]) {
      const first = upto(this.t, from - 1e-3), last = upto(this.t, to);
      return this.n !== null || last - first > MAX_MARKS ? [] : Array.from(this.t.subarray(first, last));
    }
  }

  // ---- Charts: each draws itself for the view, with the colours of the moment

  const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, scrollZoom: false };

  function layout(node, height, yaxis) {
    const width = node.clientWidth;
    const quiet = colour("quiet"), line = colour("line");
    return {
      width, height,
      margin: { l: leftMargin(width), r: RIGHT_MARGIN, t: 10, b: 42 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, 'DejaVu Sans', sans-serif", size: 12, color: colour("ink") },
      hoverlabel: { bgcolor: colour("card"), bordercolor: line, font: { color: colour("ink"), size: 12 }, align: "left" },
      showlegend: false, dragmode: "zoom", barmode: "overlay", bargap: 0.25,
      xaxis: {
        range: view.map((ns) => ns / NS), title: { text: "wall time in s", font: { color: quiet, size: 12 }, standoff: 8 },
        tickfont: { color: quiet }, gridcolor: line, zeroline: false, nticks: Math.max(Math.floor(width / 110), 3),
      },
      yaxis: { fixedrange: true, zeroline: false, gridcolor: line, ticks: "", ticklabelstandoff: 5, tickfont: { color: colour("ink"), size: 12 }, ...yaxis },
    };
  }

  const RIGHT_MARGIN = 20;
  const leftMargin = (width) => width < 560 ? 84 : 150;
  const shortened = (name, width) => {
    const room = width < 560 ? 11 : 21;
    const plain = name.replace(/&(lt|gt|amp|quot|#x27);/g, "_");
    if (plain.length <= room) return name;
    const signs = name.match(/&[^;]+;|./gu); // an entity is one sign
    return "…" + signs.slice(signs.length - room + 1).join("");
  };

  class StepChart {
    constructor(id, chart, peak) {
      this.node = element(id);
      this.peak = peak;
      this.waits = chart.waits;
      this.inFlight = new Curve(chart.in_flight);
      this.onWire = new Curve(chart.on_wire);
      this.firstBytes = new Marks(chart.first_bytes);
      this.hovered = null;
    }

    draw() {
      const pixels = Math.max(this.node.clientWidth - leftMargin(this.node.clientWidth) - RIGHT_MARGIN, 50);
      const y = { range: [0, Math.max(this.peak * 1.12, 1.2)], tickformat: ",d", nticks: 7, tickfont: { color: colour("quiet") },
        title: { text: "in flight", font: { color: colour("quiet"), size: 12 } } };
      if (this.peak < 7) y.dtick = 1;
      Plotly.react(this.node, this.traces(pixels), { ...layout(this.node, this.node.clientHeight, y), hovermode: "x" }, CONFIG);
      listen(this);
    }

    traces(pixels) {
      const flight = this.inFlight.points(view, pixels), wire = this.onWire.points(view, pixels);
      const width = flight.x.length > pixels / 4 ? 1 : 2;
      const step = (x, y, more) => ({ x, y, mode: "lines", hoverinfo: "skip", ...more, line: { shape: "hv", width: 0, ...more.line } });
      const traces = [
        step(flight.x, flight.lowest, { fill: "tozeroy", fillcolor: colour("fill") }),
        step(flight.x, flight.highest, { fill: "tonexty", fillcolor: colour("partly"), line: { width, color: colour("in-flight") } }),
      ];
      if (this.waits) traces.push(step(wire.x, wire.highest, { line: { width: 2, color: colour("on-wire"), dash: "6px,3px" } }));
      traces.push(this.marks(), this.hover(pixels));
      return traces;
    }

    /** First bytes, on the curve; one that is also the last byte lies on the level it ends. */
    marks() {
      const at = this.firstBytes.within(view);
      return {
        x: at.map((ns) => ns / NS), y: at.map((ns) => this.inFlight.range(ns - 1, ns + 1)[1]), mode: "markers", hoverinfo: "skip",
        marker: { size: 7, color: colour("paper"), line: { width: 1.3, color: colour("ink") } }, cliponaxis: false,
      };
    }

    /** Invisible points, a few pixels apart, that tell what is under the pointer. */
    hover(pixels) {
      const span = view[1] - view[0], told = this.inFlight.slot ? Math.floor(span / this.inFlight.slot) : Infinity;
      const n = Math.max(Math.min(Math.max(Math.floor(pixels / 2), 50), 1000, told), 1);
      const x = [], y = [], text = [];
      for (let slot = 0; slot < n; slot++) {
        const from = view[0] + span * slot / n, to = view[0] + span * (slot + 1) / n;
        x.push((from + to) / 2 / NS);
        y.push(this.inFlight.range(from, to)[1]);
        text.push(this.told(from, to, span));
      }
      this.slots = text;
      return { x, y, text, mode: "markers", marker: { opacity: 0, size: 6 }, hovertemplate: "%{text}<extra></extra>" };
    }

    told(from, to, span) {
      const levels = ([low, high]) => low === high ? `${high}` : `${low} to ${high}`;
      const n = this.firstBytes.count(from, to);
      return [
        `at ${moment((from + to) / 2, span)}`, `${levels(this.inFlight.range(from, to))} in flight`,
        `${levels(this.onWire.range(from, to))} on the wire`,
        `${this.firstBytes.n ? "about " : ""}${n} first ${n === 1 ? "byte" : "bytes"}`,
      ].join("<br>");
    }

    /** Move what is told by so many slots, from the middle of the view at first. */
    move(by) {
      const at = this.hovered === null ? this.slots.length >> 1 : this.hovered + by;
      this.hovered = Math.min(Math.max(at, 0), this.slots.length - 1);
      Plotly.Fx.hover(this.node, [{ curveNumber: this.node.data.length - 1, pointNumber: this.hovered }]);
      this.read(this.hovered);
    }

    read(point) {
      this.hovered = point;
      element("readout").textContent = this.slots[point].replaceAll("<br>", ", ");
    }
  }

  class StripChart {
    constructor(id, strip) {
      this.node = element(id);
      this.strip = strip;
      const all = decode(strip.highest, Int32Array);
      this.rows = strip.names.map((_, row) => Array.from(all.subarray(row * strip.n_slots, (row + 1) * strip.n_slots)));
      this.edges = Array.from({ length: strip.n_slots + 1 }, (_, slot) => strip.wall_ns * slot / strip.n_slots / NS);
    }

    draw(zooms) {
      if (zooms) Plotly.relayout(this.node, { "xaxis.range": view.map((ns) => ns / NS) });
      else this.drawAnew();
    }

    drawAnew() {
      const { names, peak } = this.strip, width = this.node.clientWidth;
      const ramp = [1, 2, 3, 4, 5].map((level) => colour(`ramp-${level}`));
      const at = (level) => peak === 1 ? 1 : (level - 1) / (peak - 1);
      const scale = peak === 1 ? [[0, colour("zero")], [1, ramp[2]]] : [
        [0, colour("zero")], [0.5 / peak, colour("zero")], [0.5 / peak, ramp[0]],
        ...ramp.map((shade, place) => [(1 + place / 4 * (peak - 1)) / peak, shade]),
      ];
      const y = { tickvals: names.map((_, row) => row), ticktext: names.map((name) => shortened(name, width)),
        range: [names.length - 0.5, -0.5], showgrid: false };
      const trace = {
        type: "heatmap", x: this.edges, y: names.map((_, row) => row), z: this.rows, zmin: 0, zmax: peak, colorscale: scale,
        showscale: false, ygap: 3, customdata: names.map((name) => this.edges.slice(1).map(() => name)),
        hovertemplate: "%{customdata}<br>%{z} in flight<br>at %{x:.6~g} s<extra></extra>",
      };
      Plotly.react(this.node, [trace], { ...layout(this.node, 56 + 24 * names.length, y), hovermode: "closest" }, CONFIG);
      listen(this);
    }
  }

  class Waterfall {
    constructor(id, chart) {
      this.node = element(id);
      this.chart = chart;
      for (const name of ["run", "label", "ending"]) this[name] = decode(chart[name], Int32Array);
      this.firstByte = decode(chart.first_byte, Float64Array);
      const edges = decode(chart.edges, Float64Array);
      this.edges = Array.from({ length: chart.segments.length + 1 }, (_, at) => edges.subarray(at * chart.n_kept, (at + 1) * chart.n_kept));
      this.start = this.edges[0];
      this.end = this.edges[chart.segments.length];
    }

    /** The longest calls in view, in the order in which they are grouped. */
    choose() {
      const duration = (call) => this.end[call] - this.start[call];
      const inView = [...this.start.keys()].filter((call) => this.start[call] < view[1] && this.end[call] >= view[0]);
      const longest = inView.length <= MAX_BARS ? inView : [...inView].sort((a, b) => duration(b) - duration(a)).slice(0, MAX_BARS);
      this.calls = longest.sort((a, b) => a - b);
      const held = this.chart.n_kept < this.chart.n ? " that the page holds" : "";
      const all = `${inView.length.toLocaleString("en")} ${inView.length === 1 ? "call" : "calls"} in view${held}`;
      element("waterfall-view").textContent = longest.length < inView.length ? `Shown: the ${MAX_BARS} longest of ${all}.` : `Shown: ${all}.`;
    }

    /** Give each call a row, below the heading of its run where there are several runs. */
    place() {
      const { chart } = this;
      this.rows = [];
      this.names = [];
      this.headings = [];
      let row = 0;
      this.calls.forEach((call, at) => {
        const last = at ? this.calls[at - 1] : -1;
        const newRun = last < 0 || this.run[call] !== this.run[last];
        if (newRun && chart.runs.length > 1) this.headings.push([row++, chart.runs[this.run[call]]]);
        if (newRun || this.label[call] !== this.label[last]) this.names.push([row, chart.labels[this.label[call]]]);
        this.rows.push(row++);
      });
      this.n = row;
    }

    draw() {
      this.choose();
      this.place();
      const width = this.node.clientWidth;
      const y = { tickvals: this.names.map(([row]) => row), ticktext: this.names.map(([, name]) => shortened(name, width)),
        range: [this.n - 0.4, -0.6], showgrid: false };
      const figure = layout(this.node, 66 + 20 * Math.max(this.n, 2), y);
      Object.assign(figure, { hovermode: "closest", annotations: this.titles(), margin: { ...figure.margin, r: this.rightMargin(), t: 46, b: 8 } });
      figure.xaxis.side = "top";
      Plotly.react(this.node, [...this.bars(), ...this.marks(), this.notes()], figure, CONFIG);
      listen(this);
    }

    /** What is left of the margin beside the bar that scrolls: the axis of time ends where those of the other charts do. */
    rightMargin() {
      return Math.max(RIGHT_MARGIN - (element("steps-chart").clientWidth - this.node.clientWidth), 0);
    }

    titles() {
      return this.headings.map(([row, text]) => ({
        x: 0, xref: "paper", xanchor: "left", y: row, text: `<b>${text}</b>`, showarrow: false, font: { size: 12, color: colour("ink") },
      }));
    }

    bars() {
      const told = this.calls.map((call) => this.told(call));
      return this.chart.segments.map((name, at) => {
        const hatched = name === "gate" || name === "pool";
        return {
          type: "bar", orientation: "h", name, y: this.rows, base: this.calls.map((call) => this.edges[at][call] / NS),
          x: this.calls.map((call) => (this.edges[at + 1][call] - this.edges[at][call]) / NS),
          hovertext: told, hovertemplate: "%{hovertext}<extra></extra>",
          marker: { color: colour(name), line: { width: 0 },
            pattern: { shape: hatched ? "/" : "", fgcolor: "#8a5a00", size: 6, solidity: 0.25, fillmode: "overlay" } },
        };
      });
    }

    /** A call in lines: what it is, when it ran, how long each of its phases took. */
    told(call) {
      const { chart } = this, start = this.start[call];
      const lines = [`<b>${chart.labels[this.label[call]]}</b>`, `from ${moment(start, view[1] - view[0])}, ${this.note(call)}`];
      if (!Number.isNaN(this.firstByte[call])) lines.push(`first byte after ${duration(this.firstByte[call] - start)}`);
      chart.segments.forEach((name, at) => {
        const spent = this.edges[at + 1][call] - this.edges[at][call];
        if (spent) lines.push(`${name.replaceAll("-", " ")} ${duration(spent)}`);
      });
      return lines.join("<br>");
    }

    note(call) {
      return `${duration(this.end[call] - this.start[call])}  ${this.chart.endings[this.ending[call]][0]}`.trim();
    }

    marks() {
      const { endings } = this.chart;
      const mark = (name, times, which, marker) => {
        const shown = this.calls.map((call, at) => [call, this.rows[at]]).filter(([call]) => which(call));
        return { name, x: shown.map(([call]) => times[call] / NS), y: shown.map(([, row]) => row), mode: "markers", hoverinfo: "skip", marker };
      };
      const outline = { width: 1.2, color: colour("ink") };
      return [
        mark("start", this.start, () => true, { symbol: "line-ns-open", size: 13, line: { width: 1, color: colour("ink") } }),
        mark("first byte", this.firstByte, (call) => !Number.isNaN(this.firstByte[call]), { size: 7, color: colour("paper"), line: outline }),
        mark("failed", this.end, (call) => endings[this.ending[call]][1], { symbol: "x", size: 10, color: colour("failure"), line: outline }),
        mark("open", this.end, (call) => endings[this.ending[call]][2], { symbol: "triangle-right", size: 10, color: colour("paper"), line: outline }),
      ];
    }

    /** How long each call is and how it ended: behind its bar, or before it, where there is room. */
    notes() {
      const span = view[1] - view[0];
      const sides = this.calls.map((call) => {
        if (this.end[call] < view[0] + 0.86 * span) return [this.end[call], "middle right", this.note(call)];
        if (this.start[call] > view[0] + 0.14 * span) return [this.start[call], "middle left", this.note(call)];
        return [view[0], "middle right", ""];
      });
      return {
        x: sides.map(([at]) => at / NS), y: this.rows, mode: "text", hoverinfo: "skip",
        text: sides.map(([, , note]) => `\u2003${note}\u2003`),
        textposition: sides.map(([, side]) => side), textfont: { size: 11, color: colour("quiet") },
      };
    }
  }

  // ---- One view for all charts

  const peak = Math.max(data.steps.peak, data.before ? data.before.peak : 0);
  const wall = Math.max(data.steps.wall_ns, data.before ? data.before.wall_ns : 0);
  const whole = [0, wall * 1.005 || 1];
  let view = whole;
  const charts = [];
  if (element("before-chart")) charts.push(new StepChart("before-chart", data.before, peak));
  if (element("steps-chart")) {
    charts.push(new StepChart("steps-chart", data.steps, peak), new StripChart("strip-chart", data.strip),
      new Waterfall("waterfall-chart", data.waterfall));
  }

  function drawAll(zooms = false) {
    for (const chart of charts) chart.draw(zooms);
    if (element("view")) element("view").textContent = `${moment(view[0], view[1] - view[0])} to ${moment(view[1], view[1] - view[0])}`;
    root.dataset.view = view.join(" ");
  }

  function setView(from, to) {
    const span = Math.min(Math.max(to - from, 10), whole[1]);
    const start = Math.min(Math.max(from, 0), whole[1] - span);
    view = [start, start + span];
    for (const chart of charts) if (chart.slots) chart.hovered = null;
    drawAll(true);
  }

  const VIEWS = {
    in: ([from, to]) => [from + (to - from) / 4, to - (to - from) / 4],
    out: ([from, to]) => [from - (to - from) / 2, to + (to - from) / 2],
    left: ([from, to]) => [from - (to - from) / 4, to - (to - from) / 4],
    right: ([from, to]) => [from + (to - from) / 4, to + (to - from) / 4],
    all: () => whole,
  };

  function listen(chart) {
    if (chart.listens) return;
    chart.listens = true;
    chart.node.on("plotly_relayout", (change) => {
      if ("xaxis.range[0]" in change) setView(change["xaxis.range[0]"] * NS, change["xaxis.range[1]"] * NS); // by the user only
    });
    chart.node.on("plotly_doubleclick", () => setView(...whole));
    if (chart.read) chart.node.on("plotly_hover", ({ points }) => chart.read(points[0].pointNumber));
  }

  function onKey(chart, event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const change = { "+": "in", "=": "in", "-": "out", 0: "all" }[event.key] || (by && event.shiftKey && (by < 0 ? "left" : "right"));
    if (event.ctrlKey || event.metaKey || event.altKey || !(by || change)) return;
    event.preventDefault();
    if (change) setView(...VIEWS[change](view));
    else chart.move(by);
  }

  for (const chart of charts) if (chart.move) chart.node.addEventListener("keydown", (event) => onKey(chart, event));
  for (const button of document.querySelectorAll("[data-view]")) {
    button.addEventListener("click", () => setView(...VIEWS[button.dataset.view](view)));
  }

  // ---- Tables

  function sortTable(table, column, ascending) {
    const key = (row) => row.cells[column].dataset.v === undefined ? row.cells[column].textContent : Number(row.cells[column].dataset.v);
    const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    const rows = Array.from(table.tBodies[0].rows, (row) => [key(row), row]);
    rows.sort(([a], [b]) => ascending ? compare(a, b) : compare(b, a));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const headers = Array.from(table.tHead.rows[0].cells);
    headers.forEach((header, column) => header.querySelector("button").addEventListener("click", () => {
      const ascending = header.getAttribute("aria-sort") !== "ascending";
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sortTable(table, column, ascending);
    }));
  }

  if (element("filter")) element("filter").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const row of element("calls").tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });

  // ---- The page changes: size, theme, paper

  let waiting = false;
  const drawSoon = () => {
    if (!waiting) requestAnimationFrame(() => { waiting = false; drawAll(); });
    waiting = true;
  };
  window.addEventListener("resize", drawSoon);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSoon);
  const paper = (on) => { root.classList.toggle("printing", on); drawAll(); };
  window.addEventListener("beforeprint", () => paper(true));
  window.addEventListener("afterprint", () => paper(false));

  drawAll();
  root.dataset.ready = "true";
})();
