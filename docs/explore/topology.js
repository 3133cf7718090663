// Barcodes as istar_nb.penalties.topology computes them: minimum spanning tree, selection of bars, persistent entropy, its
// gradient.
explore.topology = (function () {
  const {total, uniforms, normals} = explore.maths

  // Points around centres near a circle.
  function clusteredPoints({clusters, points, spread, seed}) {
    const u = uniforms(2*clusters, seed), z = normals(2*points, seed + 1000)
    return Array.from({length: points}, (_, i) => {
      const c = i % clusters, angle = 2*Math.PI*(c + 0.35*u[2*c])/clusters, radius = 0.55 + 0.45*u[2*c + 1]
      return [radius*Math.cos(angle) + spread*z[2*i], radius*Math.sin(angle) + spread*z[2*i + 1]]
    })
  }

  const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1])

  // Prim: the nearest point outside joins the tree, again and again.
  function spanningTree(x) {
    const nearest = x.map(() => 0), edges = [], outside = new Set(x.keys())
    outside.delete(0)
    while (outside.size) {
      let next = -1
      for (const i of outside)
        if (next < 0 || distance(x[i], x[nearest[i]]) < distance(x[next], x[nearest[next]])) next = i
      edges.push([nearest[next], next])
      outside.delete(next)
      for (const i of outside) if (distance(x[i], x[next]) < distance(x[i], x[nearest[i]])) nearest[i] = next
    }
    return edges
  }

  function entropy(bars) {
    const sum = total(bars)
    return total(bars.map(bar => bar > 0 ? -bar/sum*Math.log(bar/sum) : 0))
  }

  // The total length after neutralizing the first i of the bars m.
  const totalWithout = (m, i) => total(m.slice(i))*(1 + i*Math.exp(-entropy(m.slice(i))))

  // How many of the bars `s`, above zero and longest first, are features.
  function countFeatures(s, selection) {
    if (selection === "none" || s.length <= 3 || s.at(-1) === s[0]) return s.length
    const a = s.at(-1)/s[0], released = selection === "released"
    let m = [...s.slice(1), s[0]].map(bar => bar/s[0])
    for (;;) {
      const last = m.length - (released ? 3 : 1), most = Math.ceil(a*m.length*(a - 1 - Math.log(a))/(a - 1)**2)
      let i = 1
      while (i < last && totalWithout(m, i) <= totalWithout(m, i - 1)) i++
      if (released && most >= i) return i + 1
      if (!released && (i <= most || i + 1 >= m.length)) return i
      m = [...m.slice(0, released ? i : i - 1), ...m.slice(-2)]
    }
  }

  // Tree, bars, which of them are features, their entropy, and its gradient in the points.
  function barcode(x, selection) {
    const edges = spanningTree(x), bars = edges.map(([i, j]) => distance(x[i], x[j]))
    const order = [...bars.keys()].filter(k => bars[k] > 0).sort((a, b) => bars[b] - bars[a])
    const features = order.slice(0, countFeatures(order.map(k => bars[k]), selection))
    const chosen = features.map(k => bars[k]), sum = total(chosen), H = entropy(chosen), gradient = x.map(() => [0, 0])
    for (const k of features) {
      const [i, j] = edges[k], slope = -(Math.log(bars[k]/sum) + H)/sum
      for (const axis of [0, 1]) {
        const pull = slope*(x[i][axis] - x[j][axis])/bars[k]
        gradient[i][axis] += pull
        gradient[j][axis] -= pull
      }
    }
    return {edges, bars, features, entropy: H, gradient}
  }

  // Points after steps of gradient ascent on the entropy.
  function climbed(x, selection, rate, steps) {
    for (let k = 0; k < steps; k++) {
      const {gradient} = barcode(x, selection)
      x = x.map((point, i) => point.map((v, axis) => v + rate*gradient[i][axis]))
    }
    return x
  }

  return {clusteredPoints, spanningTree, entropy, countFeatures, barcode, climbed}
})()
