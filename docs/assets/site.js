// Render the mathematics: `.math` holds bare LaTeX, `.math-text` is notebook output with `$` in it.
document.querySelectorAll(".math").forEach(element => {
  katex.render(element.textContent, element, {displayMode: element.tagName === "DIV", throwOnError: false})
})
document.querySelectorAll(".math-text").forEach(element => {
  renderMathInElement(element, {throwOnError: false, delimiters: [
    {left: "$$", right: "$$", display: true}, {left: "$", right: "$", display: false}, {left: "\\(", right: "\\)", display: false}]})
})

// One button opens the source of every entry on the page; the choice lasts for the visit.
const button = document.querySelector(".all-source")
function showSource(open) {
  document.querySelectorAll("details.api-code").forEach(element => { element.open = open })
  button.textContent = open ? "Hide all source" : "Show all source"
}
if (button) {
  if (sessionStorage.getItem("all-source")) showSource(true)
  button.addEventListener("click", () => {
    const open = button.textContent.startsWith("Show")
    showSource(open)
    open ? sessionStorage.setItem("all-source", "1") : sessionStorage.removeItem("all-source")
  })
}
