// What the explorers share: controls made from the tables in controls.js, and figures in SVG.
explore.figure = {width: 460, height: 300, left: 58, right: 12, top: 12, bottom: 40}

// A number with a true minus sign, and none before a zero.
explore.number = (value, digits = 3) => value.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−")

explore.element = function (tag, attributes = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  element.append(...children)
  return element
}

explore.svg = function (tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag)
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  element.append(...children)
  return element
}

// ---- controls

explore.slider = function (id, control) {
  const {low: min, high: max, step, value} = control,
    input = explore.element("input", {type: "range", id, min, max, step, value})
  const shown = explore.element("output", {for: id, class: "value"})
  const show = () => { shown.textContent = String(input.value).replace("-", "−") }
  input.addEventListener("input", show)
  show()
  return {row: [explore.element("label", {for: id}, control.label), input, shown], read: () => Number(input.value),
          write: value => { input.value = value; show() }, input}
}

explore.choice = function (id, control) {
  const input = explore.element("select", {id})
  for (const option of control.options) input.append(explore.element("option", {value: option}, option))
  input.value = control.value
  return {row: [explore.element("label", {for: id}, control.label), input], read: () => input.value,
          write: value => { input.value = value }, input}
}

// The controls of an explorer. `update(values)` draws and returns the sentence to read out.
// What it throws is shown instead.
explore.start = function (name, update) {
  const section = document.getElementById(name), form = section.querySelector(".controls")
  const sentence = section.querySelector(".reading"), controls = {}
  const values = () => Object.fromEntries(Object.entries(controls).map(([key, control]) => [key, control.read()]))
  const redraw = () => {
    sentence.classList.remove("error")
    try { sentence.textContent = update(values()) }
    catch (error) { sentence.textContent = error.message; sentence.classList.add("error") }
  }
  const set = changes => { for (const [key, value] of Object.entries(changes)) controls[key].write(value); redraw() }
  const presets = Object.entries(explore.presets[name] || {})
  const buttons = presets.map(([label, changes]) => explore.button(label, () => set(changes)))
  if (buttons.length) form.append(explore.element("div", {class: "presets"}, ...buttons))
  for (const [key, control] of Object.entries(explore.controls[name])) {
    controls[key] = (control.options ? explore.choice : explore.slider)(`${name}-${key}`, control)
    form.append(explore.element("div", {class: "control"}, ...controls[key].row))
    controls[key].input.addEventListener("input", redraw)
  }
  form.addEventListener("submit", event => event.preventDefault())
  return {section, controls, values, redraw, set}
}

explore.button = function (label, action) {
  const button = explore.element("button", {type: "button"}, label)
  button.addEventListener("click", action)
  return button
}

// ---- axes

explore.ticks = function ([low, high], most = 5) {
  const rough = (high - low)/most, power = 10**Math.floor(Math.log10(rough))
  const step = power*[1, 2, 2.5, 5, 10].find(factor => factor*power >= rough*0.999), out = []
  for (let k = Math.ceil(low/step - 1e-9); k*step <= high + 1e-9*step; k++) out.push(Number((k*step).toPrecision(8)))
  return out
}

// Axes in an empty svg; `axes.x(value)` and `axes.y(value)` are places on it.
explore.axes = function (svg, {x, y, xlabel = "", ylabel = "", xticks = explore.ticks(x), yticks = explore.ticks(y),
                               xshow = String, yshow = String, size = {}}) {
  const {width, height, left, right, top, bottom} = {...explore.figure, ...size}, {svg: make} = explore
  const place = {x: v => left + (v - x[0])/(x[1] - x[0])*(width - left - right),
                 y: v => height - bottom - (v - y[0])/(y[1] - y[0])*(height - top - bottom)}
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`)
  svg.replaceChildren()
  for (const v of xticks) svg.append(
    make("line", {class: "grid", x1: place.x(v), x2: place.x(v), y1: top, y2: height - bottom}),
    make("text", {class: "tick", x: place.x(v), y: height - bottom + 15, "text-anchor": "middle"},
         xshow(v).replace("-", "−")))
  for (const v of yticks) svg.append(
    make("line", {class: "grid", x1: left, x2: width - right, y1: place.y(v), y2: place.y(v)}),
    make("text", {class: "tick", x: left - 6, y: place.y(v) + 4, "text-anchor": "end"}, yshow(v).replace("-", "−")))
  svg.append(make("text", {class: "axis", x: (left + width - right)/2, y: height - 6, "text-anchor": "middle"}, xlabel),
             make("text", {class: "axis", transform: `translate(12 ${(top + height - bottom)/2}) rotate(-90)`,
                           "text-anchor": "middle"}, ylabel))
  return {...place, left, right: width - right, top, bottom: height - bottom, inverse: event => {
    const box = svg.getBoundingClientRect()
    const px = (event.clientX - box.left)/box.width*width, py = (event.clientY - box.top)/box.height*height
    return [x[0] + (px - left)/(width - left - right)*(x[1] - x[0]),
            y[0] + (height - bottom - py)/(height - top - bottom)*(y[1] - y[0])]
  }}
}

// Call `move(point)` with the data coordinates of a pointer that is held down on `target`.
explore.onDrag = function (svg, begin, move) {
  let held = null
  svg.addEventListener("pointerdown", event => {
    held = begin(event)
    if (held !== null) { svg.setPointerCapture(event.pointerId); move(held, event); event.preventDefault() }
  })
  svg.addEventListener("pointermove", event => { if (held !== null) move(held, event) })
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { held = null })
}
