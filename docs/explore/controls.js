// The controls of each explorer: a slider has ends and a step, a menu has options. What the runs offer is in runs.js.
explore.references = {equal: [4, 4, 4, 4, 4, 4], "one direction": [10, 1, 1, 1, 1, 1], reversed: [1, 1, 4, 4, 6, 10]}
explore.draws = 100    // batches behind every setting

{
  const slider = (label, value, low, high, step = 1) => ({label, value, low, high, step})
  const menu = (label, options, value = options[0]) => ({label, value, options})
  const zeta = slider("shrinkage ζ", 0.2, 0, 1, 0.05), seed = slider("seed", 0, 0, 20)
  const variances = values => Object.fromEntries(values.map((value, i) => [`v${i + 1}`, value]))
  const paper = [10, 6, 4, 4, 1, 1]

  explore.controls = {
    spectrum: {...variances(paper.map((value, i) => slider(`variance ${i + 1}`, value, 0, 10, 0.1))), zeta,
      reference: menu("reference", Object.keys(explore.references))},
    batches: {n: slider("points n", 32, 5, 256), d: slider("dimensions d", 64, 2, 256),
      exponent: slider("exponent A", 1, 0, 2, 0.1), zeta, reference: menu("reference", ["true", "all equal"]), seed},
    barcode: {clusters: slider("clusters", 3, 1, 8), points: slider("points", 20, 4, 40),
      spread: slider("spread", 0.06, 0, 0.3, 0.02), seed, selection: menu("selection", ["atienza", "released", "none"]),
      rate: slider("step size", 0.1, 0.02, 0.5, 0.02), steps: slider("gradient steps", 0, 0, 40)},
    own: {rows: menu("rows", ["as many as a few seconds allow", "all"])},
  }
  const presets = {"the paper's": paper, "all equal": [5, 5, 5, 5, 5, 5], "three of six": [5, 5, 5, 0, 0, 0],
    "one direction": [10, 0, 0, 0, 0, 0], halving: [8, 4, 2, 1, 0.5, 0.2]}
  explore.presets = {spectrum: Object.fromEntries(
    Object.entries(presets).map(([label, values]) => [label, {...variances(values), zeta: 0}]))}
}
