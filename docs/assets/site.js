// What the theme leaves to do for keyboards and screen readers.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search")
// A part of the contents may have the name of a section of the site, and two landmarks may not share a name.
document.querySelectorAll(".md-nav--secondary .md-nav").forEach(nav => nav.setAttribute("aria-label", `Under ${nav.getAttribute("aria-label")}`))
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
