// Render the formulas, which the pages hold as \(...\) and \[...\]; only pages that have one load this file.
document.querySelectorAll(".arithmatex").forEach(element => {
  katex.render(element.textContent.trim().slice(2, -2), element, {displayMode: element.tagName === "DIV", throwOnError: false})
})
