// Explorer of the runs: task score against isotropy of every finished run, and against its plain run of the same seed.
explore.runs = (function () {
  const {total} = explore.maths

  // Which of a run's isotropy scores a choice of `layer` names; 0 are the embeddings.
  const layerNumber = layer => ({pooled: -1, embeddings: 0})[layer] ?? Number(layer)

  // The runs of a method, of a seed or all, and their plain runs, with the differences from these.
  function runPoints(runs, {data, method, layer, seed}) {
    const k = layerNumber(layer), isotropy = i => k < 0 ? runs.isoscore[i] : runs.layers[i][k]
    const mine = [...runs.data.keys()].filter(i => runs.data[i] === data &&
      ["all", String(runs.seed[i])].includes(seed) &&
                                                   ["all", runs.settings[runs.setting[i]].method].includes(method))
    const shown = new Set([...mine, ...mine.map(i => runs.plain[i])].filter(i => i >= 0))
    if ([...shown].some(i => k >= runs.layers[i].length)) throw new Error(`The encoder of ${data} has no layer ${layer}.`)
    const measured = new Set([...shown].filter(i => isotropy(i) !== null))
    if (shown.size && !measured.size) throw new Error("None of these runs has an IsoScore in this layer.")
    return [...measured].sort((a, b) => a - b).map(i => {
      const x = isotropy(i), y = runs.score[i], p = runs.plain[i], paired = p !== i && measured.has(p)
      return {setting: runs.setting[i], seed: runs.seed[i], x, y, collapsed: runs.collapsed[i],
              dx: paired ? x - isotropy(p) : null, dy: paired ? y - runs.score[p] : null}
    })
  }

  // One row a setting: how many runs, mean isotropy, mean score, number of pairs, mean and spread of the paired
  // difference, and how many runs gave every row one answer.
  function runTable(points) {
    const mean = values => values.length ? total(values)/values.length : null
    return [...new Set(points.map(point => point.setting))].sort((a, b) => a - b).map(setting => {
      const mine = points.filter(point => point.setting === setting),
        gains = mine.map(point => point.dy).filter(gain => gain !== null)
      return [setting, mine.length, mean(mine.map(point => point.x)), mean(mine.map(point => point.y)), gains.length,
        mean(gains),
              gains.length > 1 ? explore.maths.spread(gains, 0).sd : null, total(mine.map(point => point.collapsed))]
    })
  }

  // What can be chosen among the runs of a store; at first the first method on the first data.
  function controls(runs) {
    const distinct = values => [...new Set(values)], depth = Math.max(...runs.layers.map(row => row.length))
    const menu = (label, options, value = options[0]) => ({label, value, options})
    const methods = distinct(runs.settings.map(setting => setting.method)).filter(method => method !== "none")
    const seeds = distinct(runs.seed).sort((a, b) => a - b).map(String)
    return {data: menu("encoder and task", distinct(runs.data)), method: menu("method", ["all", ...methods], methods[0]),
      layer: menu("isotropy of", ["pooled", "embeddings", ...Array.from({length: depth - 1}, (_, i) => String(i + 1))]),
      seed: menu("seed", ["all", ...seeds]), show: menu("show", ["scores", "differences"])}
  }

  return {runPoints, runTable, controls}
})()

{
  const {svg: make, number, data: {runs}} = explore, [figure] = document.querySelectorAll("#runs svg"),
    table = document.querySelector("#runs tbody"), legend = document.querySelector("#runs .key")

  const around = (values, room) => {
    const low = Math.min(...values), high = Math.max(...values), margin = Math.max((high - low)*room, 1e-3)
    return [low - margin, high + margin]
  }

  function draw(points, rows, {show, method}, metric) {
    const differences = show === "differences"
    const x = differences ? "dx" : "x", y = differences ? "dy" : "y", shown = points.filter(point => point[x] !== null),
      zero = differences ? [0] : []
    if (!shown.length) throw new Error("None of these runs has a plain run of the same seed.")
    const axes = explore.axes(figure, {x: around(shown.map(point => point[x]).concat(zero), 0.08),
      y: around(shown.map(point => point[y]).concat(zero), 0.12),
      xlabel: differences ? "difference in IsoScore ι" : "IsoScore ι",
      ylabel: differences ? `difference in ${metric}` : metric})
    if (differences) figure.append(make("line", {class: "zero", x1: axes.left, x2: axes.right, y1: axes.y(0),
      y2: axes.y(0)}),
                                   make("line", {class: "zero", x1: axes.x(0), x2: axes.x(0), y1: axes.top,
                                     y2: axes.bottom}))
    else if (method !== "all") for (const point of shown) if (point.dx !== null) figure.append(make("line",
      {class: "pair", stroke: runs.settings[point.setting].color,
      x1: axes.x(point.x - point.dx), y1: axes.y(point.y - point.dy), x2: axes.x(point.x), y2: axes.y(point.y)}))
    for (const point of shown) {
      const {label, color, placebo} = runs.settings[point.setting],
        look = placebo ? {class: "run placebo", fill: "none", style: `stroke: ${color}`} : {class: "run", fill: color}
      figure.append(make("circle", {...look, cx: axes.x(point[x]), cy: axes.y(point[y]), r: 4},
        make("title", {}, `${label}, seed ${point.seed}: ι ${number(point[x], 4)}, ${metric} ${number(point[y], 4)}` +
          (point.collapsed ? ", one answer for every row" : ""))))
    }
    for (const [setting] of rows) {
      const mine = shown.filter(point => point.setting === setting),
        middle = key => explore.maths.total(mine.map(point => point[key]))/mine.length
      if (mine.length > 1) figure.append(make("path", {class: "cross", stroke: runs.settings[setting].color,
        d: `M${axes.x(middle(x)) - 7} ${axes.y(middle(y))}h14M${axes.x(middle(x))} ${axes.y(middle(y)) - 7}v14`}))
    }
  }

  // A dot in the colour of a setting, hollow for a placebo.
  const dot = ({color, placebo}) => explore.element("span",
    {class: "mark dot", style: placebo ? `border-color: ${color}` : `border-color: ${color}; background: ${color}`})

  // One entry for each method and sign, in the order of the table.
  function name(rows) {
    const kinds = new Map(rows.map(([setting]) => [runs.settings[setting].kind, runs.settings[setting]]))
    legend.replaceChildren(...[...kinds].flatMap(([kind, setting]) => [explore.element("span", {class: "entry"}, dot(setting), kind), " "]),
                           explore.element("span", {class: "entry"}, "+ mean of a setting"))
  }

  function report(rows) {
    table.replaceChildren(...rows.map(([setting, count, isoscore, score, pairs, gain, sd, collapsed]) => {
      const {label} = runs.settings[setting]
      const change = pairs ? `${gain < 0 ? "" : "+"}${number(gain, 4)}${sd === null ? "" : ` (sd ${number(sd, 4)})`}` :
        "–"
      return explore.element("tr", {}, explore.element("th", {scope: "row"}, dot(runs.settings[setting]), label),
        ...[count, number(isoscore, 4), number(score, 4), change, collapsed].map(text => explore.element("td", {}, String(text))))
    }))
  }

  explore.controls.runs = explore.runs.controls(runs)
  explore.start("runs", values => {
    const points = explore.runs.runPoints(runs, values), rows = explore.runs.runTable(points)
    if (!points.length) throw new Error("No run fits these choices.")
    const metric = runs.metric[runs.data.indexOf(values.data)], pairs = explore.maths.total(rows.map(row => row[4]))
    report(rows)
    name(rows)
    draw(points, rows, values, metric)
    return `${points.length} runs in ${rows.length} settings; ${pairs} of them have a plain run of the same seed. ` +
          `Score: ${metric}.`
  }).redraw()
}
