// Files of numpy.save. Functions whose text also runs in a worker.

// Where the numbers of a .npy file are and what they are; what cannot be read is said in words.
function npyHeader(buffer) {
  const bytes = new Uint8Array(buffer), view = new DataView(buffer)
  const text = (start, end) => String.fromCharCode(...bytes.subarray(start, end))
  const refuse = words => { throw new Error(words) }
  if (text(0, 2) === "PK") refuse("This is an archive (.npz) of several arrays: save one of them with numpy.save.")
  if (text(0, 6) !== "\x93NUMPY" || bytes.length < 12)
    refuse("This is not a .npy file: it does not begin as numpy.save writes it.")
  const [start, length] = bytes[6] === 1 ? [10, view.getUint16(8, true)] : [12, view.getUint32(8, true)]
  const header = text(start, start + length), shape = /'shape': \(([\d, ]*)\)/.exec(header)
  const type = /'descr': '([<>|=]?)([a-zA-Z])(\d*)/.exec(header)
  if (!type || !shape) refuse("The array is one of records or objects: save a floating-point array of points.")
  const [, order, kind, size] = type, sized = {i: "int", u: "uint", c: "complex", f: "float"},
    others = {b: "bool", O: "object", U: "str", S: "bytes"}
  const dtype = kind in sized ? sized[kind] + size*8 : others[kind] || kind
  if (!["float16", "float32", "float64"].includes(dtype)) {
    refuse(`The array has dtype ${dtype}: save float16, float32 or float64, for example with array.astype("float32").`)
  }
  const sizes = shape[1].split(",").filter(part => part.trim()).map(Number)
  if (sizes.length !== 2) refuse(`The array has shape (${sizes.join(", ")}): it must be (n, d), one point a row. ` +
                                 "Tokens of sentences become points by array.reshape(-1, array.shape[-1]).")
  const [n, d] = sizes, expected = n*d*size, there = bytes.length - start - length
  if (n < 5) refuse(`The array has ${n} points (rows): a score with a standard error needs at least 5.`)
  if (d < 2) refuse(`The array has ${d} dimension (columns): a score needs at least 2.`)
  if (there < expected)
        refuse(`The file is cut off: ${expected} bytes of numbers were announced and ${there} are there.`)
  const fortran = /'fortran_order': True/.test(header)
  return {n, d, size: Number(size), little: order !== ">", fortran, start: start + length}
}

// Some rows of the file, evenly spaced, as numbers.
function npyRows(buffer, {n, d, size, little, fortran, start}, count) {
  const view = new DataView(buffer), out = new Float64Array(count*d)
  const read = {2: at => half(view.getUint16(at, little)), 4: at => view.getFloat32(at, little),
    8: at => view.getFloat64(at, little)}[size]
  for (let k = 0; k < count; k++) {
    const i = Math.floor(k*n/count)
    for (let j = 0; j < d; j++) out[k*d + j] = read(start + size*(fortran ? j*n + i : i*d + j))
  }
  return out

  function half(bits) {
    const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023
    if (exponent === 31) return fraction ? NaN : sign*Infinity
    return sign*(exponent ? 2**(exponent - 15)*(1 + fraction/1024) : 2**-24*fraction)
  }
}

// A float32 array as numpy.save writes it, for the example.
function npyFile(values, n, d) {
  const header = `{'descr': '<f4', 'fortran_order': False, 'shape': (${n}, ${d}), }`.padEnd(117) + "\n"
  const magic = Uint8Array.of(0x93, ...[..."NUMPY"].map(c => c.charCodeAt(0)), 1, 0, header.length, 0)
  return new Blob([magic, header, Float32Array.from(values)])
}
