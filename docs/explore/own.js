// Explorer of a reader's own points: a .npy file, read and measured in a worker that never sends anything.

// How many rows are measured in a few seconds: about as many multiplications whatever d.
function rowsInSeconds(d) { return Math.floor(Math.max(Math.sqrt(4e9/d), 4e9/d**2)) }

// Everything the explorer shows of n points. Runs in the worker.
function measurePoints(maths, x, n, d, eps) {
  const largest = x.reduce((most, v) => Math.max(most, Math.abs(v)), 0)
  if (!Number.isFinite(largest)) throw new Error("The array has values that are not finite (NaN or infinity).")
  const {rows, mean} = maths.centred(x.map(v => v/(largest || 1)), n, d), variance = new Float64Array(d)
  const spread = rows.reduce((most, v) => Math.max(most, Math.abs(v)), 0)
  if (!(spread > 16*eps)) throw new Error("The array has zero variance: its points differ by no more than rounding.")
  for (let i = 0; i < n; i++) for (let j = 0; j < d; j++) variance[j] += rows[i*d + j]**2/n
  const parts = maths.sums(rows, n, d), trace = maths.total(parts.lengths),
    {squared, ratio} = maths.unbiasedRatio(parts)
  const plugIn = trace**2/parts.square, least = 64*eps*(trace/(n - 1))**2
  if (!(squared > least))
    throw new Error("The array has too few different points for an unbiased score.")
  return {n, d, isoscore: maths.scoreOfRatio(plugIn, d), ratio: plugIn, unbiased: maths.scoreOfRatio(ratio, d),
          error: maths.jackknife(maths.scoresWithoutEach(parts, least)),
          shares: maths.eigenvalues(parts.products, parts.size).map(v => Math.max(v, 0)/trace),
          ...outliers(mean, variance), largest}

  // Dimensions whose root mean square is three standard deviations above the rest.
  function outliers(mean, variance) {
    const size = mean.map((m, j) => Math.sqrt(m*m + variance[j])), middle = maths.total(size)/d
    const away = size.map(v => v - middle), limit = 3*Math.sqrt(maths.squares(away)/d) + 16*2**-52*Math.max(...size)
    const ids = [...away.keys()].filter(j => away[j] > limit)
    return {size: size.map(v => v*largest), ids,
      share: ids.reduce((sum, j) => sum + variance[j], 0)/maths.total(variance)}
  }
}

async function measureFile(maths, file, all) {
  const buffer = await file.arrayBuffer(), header = npyHeader(buffer)
  const count = all ? header.n : Math.min(header.n, Math.max(5, rowsInSeconds(header.d)))
  return {...measurePoints(maths, npyRows(buffer, header, count), count, header.d, header.size === 8 ? 2**-52 : 2**-23),
    of: header.n}
}

{
  const {number, svg: make} = explore, section = document.getElementById("own"),
    [spectrum, sizes] = section.querySelectorAll("svg")
  const [sentence, input, table] = [".reading", "input[type=file]", "tbody"].map(selector =>
    section.querySelector(selector))
  let worker = null, file = null, explorer

  function startWorker() {
    const text = [exploreMaths, npyHeader, npyRows, rowsInSeconds, measurePoints, measureFile].join("\n") + `
      const maths = exploreMaths()
      onmessage = ({data}) => measureFile(maths, data.file, data.all).then(
            result => postMessage({result}), error => postMessage({error: error.message}))`
    return new Worker(URL.createObjectURL(new Blob([text], {type: "text/javascript"})))
  }

  function measure() {
    if (!file) return
    if (worker) worker.terminate()
    worker = startWorker()
    worker.onmessage = ({data: {result, error}}) => {
      worker.terminate()
      sentence.classList.toggle("error", Boolean(error))
      sentence.textContent = error || show(result)
    }
    sentence.classList.remove("error")
    sentence.textContent = "Measuring …"
    for (const part of [table, spectrum, sizes]) part.replaceChildren()    // of the file before
    worker.postMessage({file, all: explorer.values().rows === "all"})
  }

  function choose(chosen) { file = chosen; measure() }

  // One point may decide whether there is a score at all.
  const withError = r => `${number(r.unbiased, 4)} ± ${Number.isFinite(r.error) ? number(r.error, 4) : "not known"}`

  const percent = share => `${number(100*share, 1)} %`

  function show(r) {
    const rows = [["IsoScore* of these points (plug-in)", number(r.isoscore, 4)],
      ["Participation ratio", `${number(r.ratio, 2)} of ${r.d}`],
      ["Unbiased IsoScore ± standard error", withError(r)],
      ["Variance in the first direction, in the first ten",
        `${percent(r.shares[0])}, ${percent(explore.maths.total(r.shares.slice(0, 10)))}`],
      ["Outlier dimensions (counted from 0)", r.ids.length ?
        `${r.ids.slice(0, 12).join(", ")}${r.ids.length > 12 ? ", …" : ""}; ${percent(r.share)} of the variance` :
        "none"]]
    table.replaceChildren(...rows.map(([name, value]) =>
      explore.element("tr", {}, explore.element("th", {scope: "row"}, name), explore.element("td", {}, value))))
    drawSpectrum(r.shares)
    drawSizes(r)
    const some = r.n < r.of ? `${r.n} rows, evenly spaced, of ${r.of}` : `${r.n} points`
    const doubt = r.unbiased > 1 ? " A score above 1 says that there are too few points to tell." : ""
    return `${some} in ${r.d} dimensions: unbiased IsoScore ι = ${withError(r)}.${doubt}`
  }

  // Both axes logarithmic.
  function drawSpectrum(shares) {
    const there = [...shares].filter(v => v > 1e-9), low = Math.min(-1, Math.floor(Math.log10(there.at(-1)))),
      high = Math.ceil(Math.log10(there.length) || 1)
    const powers = (from, to) => Array.from({length: to - from + 1}, (_, k) => from + k)
    const axes = explore.axes(spectrum, {x: [0, high], y: [low, 0], xticks: powers(0, high),
      yticks: powers(low, 0).filter(k => (k - low) % Math.ceil(-low/6) === 0),
      xshow: k => String(10**k), yshow: k => `${10**(k + 2)} %`, xlabel: "direction, largest first",
      ylabel: "share of variance"})
    spectrum.append(make("polyline", {class: "line",
      points: there.map((v, i) => `${axes.x(Math.log10(i + 1))},${axes.y(Math.log10(v))}`).join(" ")}))
  }

  function drawSizes({size, ids, d}) {
    const axes = explore.axes(sizes, {x: [0, d - 1], y: [0, Math.max(...size)*1.05], xlabel: "dimension",
      ylabel: "root mean square"})
    sizes.append(make("path", {class: "spikes", d: [...size].map((v, j) =>
      `M${axes.x(j)} ${axes.y(0)}V${axes.y(v)}`).join("")}),
                 ...ids.map(j => make("circle", {class: "marked", cx: axes.x(j), cy: axes.y(size[j]), r: 4})))
  }

  // 400 points in 64 dimensions with a falling spectrum and one dimension that stands out.
  function example() {
    const [n, d] = [400, 64], x = explore.maths.normals(n*d, 1)
    choose(npyFile(x.map((v, k) => k % d === 17 ? 4 + 2*v : v*(1 + k % d)**-0.3), n, d))
  }

  explorer = explore.start("own", () => { measure(); return sentence.textContent })
  section.querySelector(".controls").append(explore.button("Use an example", example))
  input.addEventListener("change", () => input.files.length && choose(input.files[0]))
  const zone = section.querySelector(".drop")
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) zone.addEventListener(kind, event => {
    event.preventDefault()
    zone.classList.toggle("over", kind.endsWith("er"))
    if (kind === "drop" && event.dataTransfer.files.length) choose(event.dataTransfer.files[0])
  })
}
