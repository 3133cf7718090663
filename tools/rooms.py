"The page of a folder of notebooks: which rooms it has, in the words of their first lines, and which builds on which."
import html
import re

import nbformat


class Room:
    "A notebook of a folder: its title and subtitle, and the rooms beside it that its module imports."
    def __init__(self, path, package):
        self.path, self.name = path, re.sub(r"^\d+_", "", path.stem)
        text = next(c.source for c in nbformat.read(path, 4).cells if c.cell_type == "markdown")
        self.title = re.search(r"^# (.+)", text, re.M)[1]
        found = re.search(r"^> ?(.+)", text, re.M)
        self.said = found[1] if found else re.sub(r"^# .+\n*", "", text).split("\n")[0]
        module = package/path.parent.name/f"{self.name}.py"
        source = module.read_text(encoding="utf-8") if module.exists() else ""
        self.uses = set(re.findall(r"^\s*from \.(\w+) import", source, re.M))


def rooms(folder, package):
    return [Room(path, package) for path in sorted(folder.glob("[!.]*.ipynb"))]


def levels(every):
    "Room name -> how many steps of imports are below it."
    depth = {}
    for room in every: depth[room.name] = max((depth[name] + 1 for name in room.uses if name in depth), default=0)
    return depth


def drawing(every):
    "An SVG of the rooms, each above those that it imports; its colours are those of the text around it."
    depth, spots, used = levels(every), {}, {}
    for room in every:
        column = used[depth[room.name]] = used.get(depth[room.name], -1) + 1
        spots[room.name] = (column*150 + 10, (max(depth.values()) - depth[room.name])*80 + 10)
    width, height = 150*(max(used.values()) + 1) + 10, 80*(max(depth.values()) + 1)
    lines, boxes = [], []
    for room in every:
        x, y = spots[room.name]
        for name in sorted(room.uses & set(spots)):
            a, b = spots[name]
            lines.append(f'<path d="M{a + 65} {b} C{a + 65} {b - 25} {x + 65} {y + 65} {x + 65} {y + 40}" fill="none" '
                         'stroke="currentColor" stroke-opacity="0.35"/>')
        boxes.append(f'<rect x="{x}" y="{y}" width="130" height="40" rx="6" stroke="currentColor" '
                     'style="fill: var(--md-default-bg-color, Canvas)"/>'
                     f'<text x="{x + 65}" y="{y + 25}" text-anchor="middle" font-size="13" fill="currentColor">'
                     f'{html.escape(room.name)}</text>')
    label = f"The rooms {', '.join(room.name for room in every)}; a line leads up to a room from each that it imports"
    return (f'<svg role="img" aria-label="{label}" viewBox="0 0 {width} {height}" width="{width}" '
            f'style="max-width: 100%; height: auto">{"".join(lines + boxes)}</svg>')


def page(text, every):
    "The folder's paragraph, the drawing where modules import one another, and the list of rooms."
    picture = [f'<figure>{drawing(every)}</figure>\n\nA line leads up to a room from each room that it imports.']
    lines = [f"- [{room.title}]({room.path.name}): {room.said}" for room in every]
    return "\n\n".join([text.strip(), *picture*any(room.uses for room in every), "\n".join(lines)]) + "\n"


FOLDERS = ("base", "geometry", "penalties", "text", "training", "sweeps", "report", "embeddings", "app", "study")
INTRO = """# All notebooks

> What each notebook is about

The library is exported from notebooks, each of which defines, explains and tests one thing. They are in
folders, in the order in which they build on one another; in a folder, numbers rise with what a notebook builds
on. Good ones to start with are [`05_isotropy`](../nbs/report/05_isotropy.ipynb) for measuring a model,
[`00_regularizers`](../nbs/penalties/00_regularizers.ipynb) for changing isotropy,
[`09_training`](../nbs/training/09_training.ipynb) for training, and
[`10_judging`](../nbs/report/10_judging.ipynb) for judging results. The [pages of the papers' tables and
figures](../nbs/experiments/findings.ipynb) and of our own questions are in `experiments`, and
[`api`](../nbs/api.ipynb) has the names of `import istar_nb`.
"""


def table(root):
    "docs/notebooks.md: every numbered notebook with its subtitle, folder by folder."
    parts = [INTRO.strip()]
    for folder in FOLDERS:
        title = (root/"docs"/"explanation"/folder/"index.md").read_text(encoding="utf-8").split("\n")[0].strip("# ")
        lines = [f"- [`{room.path.stem}`](../nbs/{folder}/{room.path.name}): {room.said}"
                 for room in rooms(root/"nbs"/folder, root/"istar_nb") if room.path.stem[0].isdigit()]
        parts += [f"## {title}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"
