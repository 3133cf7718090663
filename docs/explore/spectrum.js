// Explorer of a spectrum: variances and ζ against participation ratio and IsoScore*.
{
  const {svg: make, number} = explore, [bars, ellipse] = document.querySelectorAll("#spectrum svg")
  const names = Object.keys(explore.controls.spectrum).filter(key => /^v\d$/.test(key)),
    most = explore.controls.spectrum.v1.high
  let axes

  function drawBars(variances, reference, eigenvalues) {
    axes = explore.axes(bars, {x: [0.4, names.length + 0.6], y: [0, most*1.05], xlabel: "direction", ylabel: "variance",
      xticks: names.map((_, i) => i + 1)})
    eigenvalues.forEach((value, i) => {
      const left = axes.x(i + 0.7), right = axes.x(i + 1.3), bar = {x: left, width: right - left}
      bars.append(make("rect", {class: "mixed", ...bar, y: axes.y(value), height: axes.y(0) - axes.y(value)}),
                  make("rect", {class: "batch", ...bar, y: axes.y(variances[i]),
                    height: axes.y(0) - axes.y(variances[i])}),
                  make("line", {class: "reference", x1: left - 4, x2: right + 4, y1: axes.y(reference[i]),
                    y2: axes.y(reference[i])}))
    })
  }

  // One standard deviation along the first two directions, the same length on both axes.
  function drawEllipse(variances, eigenvalues) {
    const limit = Math.sqrt(most)*1.1, scale = 260/(2*limit)
    ellipse.setAttribute("viewBox", "0 0 300 300")
    ellipse.replaceChildren(
      make("line", {class: "grid", x1: 20, x2: 280, y1: 150, y2: 150}),
        make("line", {class: "grid", x1: 150, x2: 150, y1: 20, y2: 280}),
      ...[["batch", variances], ["mixed", eigenvalues]].map(([kind, v]) =>
        make("ellipse", {class: kind, cx: 150, cy: 150, rx: scale*Math.sqrt(v[0]), ry: scale*Math.sqrt(v[1])})),
      make("text", {class: "axis", x: 150, y: 295, "text-anchor": "middle"}, "direction 1"),
      make("text", {class: "axis", transform: "translate(14 150) rotate(-90)", "text-anchor": "middle"}, "direction 2"))
  }

  const explorer = explore.start("spectrum", values => {
    const variances = names.map(name => values[name]), reference = explore.references[values.reference]
    const {eigenvalues, ratio, isoscore} = explore.maths.spectrumNumbers(variances, reference, values.zeta)
    drawBars(variances, reference, eigenvalues)
    drawEllipse(variances, eigenvalues)
    return `Participation ratio ${number(ratio)} of ${names.length} directions; IsoScore* ι = ${number(isoscore)}.`
  })

  explore.onDrag(bars, event => {
    const i = Math.round(axes.inverse(event)[0])
    return i >= 1 && i <= names.length ? names[i - 1] : null
  }, (name, event) => explorer.set({[name]: Math.min(most, Math.max(0, axes.inverse(event)[1])).toFixed(1)}))
  explorer.redraw()
}
