// Explorer of a barcode: points, their minimum spanning tree, its edges as bars, which of them are features, and a
// gradient step.
{
  const {svg: make, number, topology} = explore, section = document.getElementById("barcode"),
    [cloud, bars] = section.querySelectorAll("svg")
  const sources = ["clusters", "points", "spread", "seed"],
    square = {width: 300, height: 300, left: 34, right: 8, top: 8, bottom: 26}, limit = 1.7
  let made = "", base = [], shown = [], axes

  function drawCloud(x, {edges, features, gradient}, rate) {
    const selected = new Set(features)
    axes = explore.axes(cloud, {x: [-limit, limit], y: [-limit, limit], size: square})
    edges.forEach(([i, j], k) => cloud.append(make("line", {class: selected.has(k) ? "edge feature" : "edge",
      x1: axes.x(x[i][0]), y1: axes.y(x[i][1]), x2: axes.x(x[j][0]), y2: axes.y(x[j][1])})))
    x.forEach(([a, b], i) => cloud.append(
      make("line", {class: "arrow", x1: axes.x(a), y1: axes.y(b), x2: axes.x(a + 3*rate*gradient[i][0]),
        y2: axes.y(b + 3*rate*gradient[i][1])}),
      make("circle", {class: i === place.point.read() - 1 ? "point current" : "point", cx: axes.x(a), cy: axes.y(b),
        r: 4})))
  }

  function drawBars({bars: lengths, features}) {
    const selected = new Set(features), order = [...lengths.keys()].sort((a, b) => lengths[b] - lengths[a])
    const own = explore.axes(bars, {x: [0, Math.max(...lengths)*1.03 || 1], y: [order.length, 0],
      xlabel: "length of the bar", yticks: [], size: {left: 14}})
    const thick = Math.min(14, 220/order.length)
    order.forEach((k, i) => bars.append(make("rect",
      {class: selected.has(k) ? "bar feature" : "bar", x: own.x(0), width: own.x(lengths[k]) - own.x(0),
      y: own.y(i + 0.5) - thick/2, height: thick*0.8})))
  }

  function update(values) {
    const wanted = sources.map(key => values[key]).join()
    if (wanted !== made) { made = wanted; base = topology.clusteredPoints(values) }
    shown = topology.climbed(base, values.selection, values.rate, values.steps)
    const result = topology.barcode(shown, values.selection), count = result.features.length
    place.point.input.max = shown.length
    place.point.write(Math.min(place.point.read(), shown.length))
    drawCloud(shown, result, values.rate)
    drawBars(result)
    showPlace()
    return `${count} of ${result.bars.length} bars selected; persistent entropy H = ${number(result.entropy)} ` +
          `of at most ${number(Math.log(Math.max(1, count)))}.`
  }

  // A point that is moved starts a new cloud, at step 0.
  function move(i, position) {
    base = shown.map((point, k) => k === i ? position.map(v => Math.max(-limit, Math.min(limit, v))) : point)
    explorer.set({steps: 0})
  }

  // ---- one point by sliders, for the keyboard

  const place = {
    point: explore.slider("barcode-point", {label: "point", low: 1, high: 1, step: 1, value: 1}),
    x: explore.slider("barcode-x", {label: "across", low: -limit, high: limit, step: 0.01, value: 0}),
    y: explore.slider("barcode-y", {label: "up", low: -limit, high: limit, step: 0.01, value: 0}),
  }
  section.querySelector(".place").append(...Object.values(place).map(control =>
    explore.element("div", {class: "control"}, ...control.row)))
  function showPlace() {
    [place.x, place.y].forEach((control, axis) => control.write(shown[place.point.read() - 1][axis].toFixed(2)))
  }
  for (const control of [place.x, place.y]) control.input.addEventListener("input", () =>
    move(place.point.read() - 1, [place.x.read(), place.y.read()]))

  const explorer = explore.start("barcode", update)
  place.point.input.addEventListener("input", explorer.redraw)
  explorer.section.querySelector(".controls").append(
    explore.button("One gradient step", () => explorer.set({steps: explorer.values().steps + 1})),
    explore.button("Start again", () => { made = ""; explorer.set({steps: 0}) }))

  explore.onDrag(cloud, event => {
    const [a, b] = axes.inverse(event), apart = shown.map(point => Math.hypot(point[0] - a, point[1] - b)),
      nearest = apart.indexOf(Math.min(...apart))
    if (apart[nearest] > 0.2) return null
    place.point.write(nearest + 1)
    return nearest
  }, (i, event) => move(i, axes.inverse(event)))
  explorer.redraw()
}
