// What the theme leaves to do for keyboards and screen readers.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search")
const reach = () => {
  document.querySelectorAll("pre > code, .arithmatex, .md-typeset__scrollwrap").forEach(element => {
    if (element.scrollWidth > element.clientWidth) element.tabIndex = 0
  })
  document.querySelectorAll("th:empty").forEach(th => th.replaceWith(document.createElement("td")))   // the corner of a table
  document.querySelectorAll(".md-code__nav:not([role])").forEach(nav => nav.setAttribute("role", "none"))
}
new MutationObserver(reach).observe(document.querySelector(".md-content"), {childList: true, subtree: true})
addEventListener("resize", reach)
addEventListener("load", reach)
