// The numbers of the explorers; tests/test_explore.py holds them equal to those of istar_nb.
// One function, so that its text also runs in a worker: a page opened as a file may not load a worker's script.
const explore = {}

function exploreMaths() {
  const total = values => values.reduce((sum, v) => sum + v, 0)
  const squares = values => values.reduce((sum, v) => sum + v*v, 0)

  // ---- a spectrum

  function participationRatio(eigenvalues) {
    const square = squares(eigenvalues)
    if (!(square > 0)) throw new Error("All variances are zero: there is nothing to score.")
    return total(eigenvalues)**2/square
  }

  const scoreOfRatio = (ratio, d) => (ratio - 1)/(d - 1)

  function spectrumNumbers(variances, reference, zeta) {
    const eigenvalues = variances.map((v, i) => (1 - zeta)*v + zeta*reference[i])
    const ratio = participationRatio(eigenvalues)
    return {eigenvalues, ratio, isoscore: scoreOfRatio(ratio, eigenvalues.length)}
  }

  // ---- seeded random numbers: mulberry32, then Box and Muller

  function uniform(seed, i) {
    const a = (seed + Math.imul(i + 1, 0x6D2B79F5)) | 0
    let t = Math.imul(a ^ (a >>> 15), a | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return (((t ^ (t >>> 14)) >>> 0) + 0.5)/2**32
  }

  const uniforms = (count, seed, start = 0) => Float64Array.from({length: count}, (_, i) => uniform(seed, start + i))

  function normals(count, seed, start = 0) {
    const out = new Float64Array(count)
    for (let i = 0; i < count; i++) {
      const pair = 2*Math.floor((start + i)/2), angle = 2*Math.PI*uniform(seed, pair + 1)
      out[i] = Math.sqrt(-2*Math.log(uniform(seed, pair)))*((start + i) % 2 ? Math.sin(angle) : Math.cos(angle))
    }
    return out
  }

  // ---- a cloud of points: rows of an (n, d) array

  function centred(x, n, d) {
    const mean = new Float64Array(d), out = new Float64Array(n*d)
    for (let i = 0; i < n; i++) for (let j = 0; j < d; j++) mean[j] += x[i*d + j]/n
    for (let i = 0; i < n; i++) for (let j = 0; j < d; j++) out[i*d + j] = x[i*d + j] - mean[j]
    return {rows: out, mean}
  }

  function transposed(x, n, d) {
    const out = new Float64Array(n*d)
    for (let i = 0; i < n; i++) for (let j = 0; j < d; j++) out[j*n + i] = x[i*d + j]
    return out
  }

  // All inner products of the m rows of an (m, k) array, two by two, a stretch of columns at a time.
  function innerProducts(x, m, k) {
    const out = new Float64Array(m*m), stretch = 512
    for (let start = 0; start < k; start += stretch) {
      const end = Math.min(k, start + stretch)
      for (let i = 0; i < m; i += 2) for (let j = i; j < m; j += 2) {
        const a = i*k, b = Math.min(i + 1, m - 1)*k, c = j*k, e = Math.min(j + 1, m - 1)*k
        let ac = 0, ae = 0, bc = 0, be = 0
        for (let l = start; l < end; l++) {
          const xa = x[a + l], xb = x[b + l], xc = x[c + l], xe = x[e + l]
          ac += xa*xc; ae += xa*xe; bc += xb*xc; be += xb*xe
        }
        out[i*m + j] += ac
        if (j + 1 < m) out[i*m + j + 1] += ae
        if (i + 1 < m && j > i) out[(i + 1)*m + j] += bc
        if (i + 1 < m && j + 1 < m) out[(i + 1)*m + j + 1] += be
      }
    }
    for (let i = 0; i < m; i++) for (let j = 0; j < i; j++) out[i*m + j] = out[j*m + i]
    return out
  }

  // What the scores need of centred rows: ‖x_i‖², the sum of squares of the products, and the products themselves.
  function sums(rows, n, d) {
    const dual = n < d, size = dual ? n : d
    const products = dual ? innerProducts(rows, n, d) : innerProducts(transposed(rows, n, d), d, n)
    const lengths = Float64Array.from({length: n}, (_, i) => squares(rows.subarray(i*d, (i + 1)*d)))
    return {n, d, rows, dual, size, products, lengths, square: squares(products)}
  }

  // Estimates of tr(Σ²) and tr(Σ)² from sums over distinct points (Himeno & Yamada 2014).
  function ratioOfTraces(n, pairs, triples, quadruples) {
    const n2 = n*(n - 1), n3 = n2*(n - 2), n4 = n3*(n - 3)
    const [squared, traceSquared] = [0, 1].map(k => pairs[k]/n2 - 2*triples[k]/n3 + quadruples/n4)
    return {squared, ratio: traceSquared/squared}
  }

  function unbiasedRatio({n, lengths, square}) {
    const b = total(lengths), q = squares(lengths)
    return ratioOfTraces(n, [square - q, b*b - q], [2*q - square, 2*q - b*b], b*b + 2*square - 6*q)
  }

  // The score with each point left out in turn, for the standard error; NaN where tr(Σ²) is not above `least`.
  function scoresWithoutEach({n, d, rows, dual, size, products, lengths, square}, least) {
    const all = total(lengths), q = squares(lengths), weighted = new Float64Array(d)
    for (let i = 0; i < n; i++) for (let j = 0; j < d; j++) weighted[j] += lengths[i]*rows[i*d + j]
    return Float64Array.from({length: n}, (_, i) => {
      const x = rows.subarray(i*d, (i + 1)*d), l = lengths[i], l2 = l*l, b = all - l
      const r = dual ? squares(products.subarray(i*n, (i + 1)*n)) : form(products, x, size)
      const w = x.reduce((sum, v, j) => sum + v*weighted[j], 0)
      const rest = square - 2*r + l2
      const pairs = [square - 2*r + 2*l2 - q, b*b - q + l2]
      const triples = [r - l2 + 2*(w - l2) + 2*(q - l2) - rest, b*l + 2*(w - l2) + 2*(q - l2) - b*b]
      const quadruples = l2 - 2*b*l - 4*(r - l2) + b*b + 2*rest - 8*(w - l2) - 6*(q - l2)
      const {squared, ratio} = ratioOfTraces(n - 1, pairs, triples, quadruples)
      return squared > least ? scoreOfRatio(ratio, d) : NaN
    })
  }

  function form(matrix, x, d) {
    let out = 0
    for (let i = 0; i < d; i++) {
      let dot = 0
      for (let j = 0; j < d; j++) dot += matrix[i*d + j]*x[j]
      out += dot*x[i]
    }
    return out
  }

  function jackknife(scores) {
    const mean = total(scores)/scores.length
    return Math.sqrt(scores.reduce((sum, s) => sum + (s - mean)**2, 0)*(scores.length - 1)/scores.length)
  }

  // ---- small batches

  const powerSpectrum = (d, exponent) => Array.from({length: d}, (_, i) => (i + 1)**-exponent)

  function referenceSpectrum(variances, kind) {
    return kind === "true" ? variances : variances.map(() => total(variances)/variances.length)
  }

  // Plug-in, shrunk and unbiased score of one batch of centred rows.
  function batchScores(parts, reference, zeta) {
    const {n, d, rows, lengths, square} = parts, diagonal = new Float64Array(d)
    for (let i = 0; i < n; i++) for (let j = 0; j < d; j++) diagonal[j] += rows[i*d + j]**2/(n - 1)
    const trace = total(lengths)/(n - 1), norm = square/(n - 1)**2
    const cross = diagonal.reduce((sum, v, j) => sum + v*reference[j], 0)
    const shrunkTrace = (1 - zeta)*trace + zeta*total(reference)
    const shrunkSquare = (1 - zeta)**2*norm + 2*zeta*(1 - zeta)*cross + zeta**2*squares(reference)
    return [trace**2/norm, shrunkTrace**2/shrunkSquare, unbiasedRatio(parts).ratio].map(ratio => scoreOfRatio(ratio, d))
  }

  function drawBatch(n, variances, seed, number) {
    const d = variances.length, x = normals(n*d, seed, number*n*d), scale = variances.map(Math.sqrt)
    for (let i = 0; i < n*d; i++) x[i] *= scale[i % d]
    return sums(centred(x, n, d).rows, n, d)
  }

  function spread(values, truth) {
    const mean = total(values)/values.length
    return {mean, bias: mean - truth, sd: Math.sqrt(squares(values.map(v => v - mean))/(values.length - 1))}
  }

  // ---- eigenvalues of a symmetric matrix, largest first: Householder's tridiagonal form, then implicit QL

  function eigenvalues(matrix, m) {
    const a = Float64Array.from(matrix), diagonal = new Float64Array(m), off = new Float64Array(m)
    for (let i = m - 1; i > 0; i--) {
      const row = a.subarray(i*m, i*m + i), scale = row.reduce((most, v) => Math.max(most, Math.abs(v)), 0)
      if (i === 1 || scale === 0) { off[i] = row[i - 1]; diagonal[i] = a[i*m + i]; continue }
      for (let k = 0; k < i; k++) row[k] /= scale
      const last = row[i - 1], length = (last > 0 ? -1 : 1)*Math.sqrt(squares(row)), h = length*length - last*length
      off[i] = scale*length
      row[i - 1] = last - length
      reflect(a, m, i, row, h)
      diagonal[i] = a[i*m + i]
    }
    diagonal[0] = a[0]
    return implicitQL(diagonal, off.copyWithin(0, 1).fill(0, m - 1), m).sort().reverse()
  }

  // a[:i, :i] ← P a P with P = I - uuᵀ/h, in the lower triangle.
  function reflect(a, m, i, u, h) {
    const p = new Float64Array(i)
    for (let j = 0; j < i; j++) {
      const row = j*m, uj = u[j]
      let dot = a[row + j]*uj
      for (let k = 0; k < j; k++) { dot += a[row + k]*u[k]; p[k] += a[row + k]*uj }
      p[j] += dot
    }
    let shift = 0
    for (let j = 0; j < i; j++) { p[j] /= h; shift += u[j]*p[j] }
    for (let j = 0; j < i; j++) p[j] -= shift/(2*h)*u[j]
    for (let j = 0; j < i; j++) for (let k = 0; k <= j; k++) a[j*m + k] -= u[j]*p[k] + p[j]*u[k]
  }

  function implicitQL(diagonal, off, m) {
    for (let l = 0; l < m; l++) for (;;) {
      let end = l
      while (end < m - 1 && Math.abs(off[end]) > 1e-16*(Math.abs(diagonal[end]) + Math.abs(diagonal[end + 1]))) end++
      if (end === l) break
      let g = (diagonal[l + 1] - diagonal[l])/(2*off[l]), r = Math.hypot(g, 1), s = 1, c = 1, p = 0, i
      g = diagonal[end] - diagonal[l] + off[l]/(g + (g < 0 ? -r : r))
      for (i = end - 1; i >= l; i--) {
        const f = s*off[i], b = c*off[i]
        off[i + 1] = r = Math.hypot(f, g)
        if (r === 0) { diagonal[i + 1] -= p; off[end] = 0; break }
        s = f/r; c = g/r
        g = diagonal[i + 1] - p
        r = (diagonal[i] - g)*s + 2*c*b
        p = s*r
        diagonal[i + 1] = g + p
        g = c*r - b
      }
      if (r === 0 && i >= l) continue
      diagonal[l] -= p
      off[l] = g
      off[end] = 0
    }
    return diagonal
  }

  return {total, squares, participationRatio, scoreOfRatio, spectrumNumbers, uniforms, normals, centred, sums,
          unbiasedRatio, scoresWithoutEach, jackknife, powerSpectrum, referenceSpectrum, batchScores, drawBatch, spread,
          eigenvalues}
}

explore.maths = exploreMaths()
