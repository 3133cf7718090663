// Explorer of small batches: what the plug-in, the shrunk and the unbiased score make of many draws of n points.
{
  const {maths, number, svg: make} = explore, names = ["plug-in", "shrunk", "unbiased"], draws = explore.draws
  const [figure] = document.querySelectorAll("#batches svg"),
    [sentence, table] = [".reading", "tbody"].map(selector => document.querySelector(`#batches ${selector}`))
  let frame = 0

  // A dot a batch, in a strip a score; a line at the truth and a bar at each mean.
  function draw(scores, truth) {
    const most = Math.max(truth, ...scores.flat())*1.05
    const axes = explore.axes(figure, {x: [0, most], y: [-0.5, 2.5], xlabel: "score ι", yticks: []})
    figure.append(make("line", {class: "reference", x1: axes.x(truth), x2: axes.x(truth), y1: axes.y(2.5),
      y2: axes.y(-0.5)}))
    scores.forEach((values, k) => {
      const middle = 2 - k, mean = axes.x(maths.total(values)/values.length)
      values.forEach((v, i) => figure.append(make("circle",
        {class: `dot score-${k}`, cx: axes.x(v), cy: axes.y(middle + ((i*0.618) % 1 - 0.5)*0.55), r: 3})))
      figure.append(make("line", {class: `mean score-${k}`, x1: mean, x2: mean, y1: axes.y(middle + 0.38),
        y2: axes.y(middle - 0.38)}),
                    make("text", {class: `name score-${k}`, x: axes.x(most), y: axes.y(middle + 0.3),
                      "text-anchor": "end"}, names[k]))
    })
  }

  function report(scores, truth) {
    const found = scores.map(values => maths.spread(values, truth))
    const cells = ({mean, bias, sd}) => [mean, bias, sd].map(value => explore.element("td", {}, number(value)))
    table.replaceChildren(...found.map((spread, k) =>
      explore.element("tr", {}, explore.element("th", {scope: "row"}, names[k]), ...cells(spread))))
    if (scores[0].length < draws) return `${scores[0].length} of ${draws} batches …`
    const means = found.map(({mean, sd}, k) => `${names[k]} ${number(mean)} (sd ${number(sd)})`)
    return `True ι = ${number(truth)}. Means of ${draws} batches: ${means.join(", ")}.`
  }

  // As many batches a frame as fit into a few milliseconds.
  function begin({n, d, exponent, zeta, reference, seed}) {
    cancelAnimationFrame(frame)
    const variances = maths.powerSpectrum(d, exponent), other = maths.referenceSpectrum(variances, reference)
    const truth = maths.scoreOfRatio(maths.participationRatio(variances), d), scores = names.map(() => [])
    const more = () => {
      const end = performance.now() + 20
      do maths.batchScores(maths.drawBatch(n, variances, seed, scores[0].length), other, zeta).forEach((score, k) =>
        scores[k].push(score))
      while (scores[0].length < draws && performance.now() < end)
      draw(scores, truth)
      sentence.textContent = report(scores, truth)
      if (scores[0].length < draws) frame = requestAnimationFrame(more)
      return sentence.textContent
    }
    return more()
  }

  explore.start("batches", begin).redraw()
}
