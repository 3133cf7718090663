"""Make the site's explorers: `python tools/explore.py FOLDER` writes a page that works from a file, without a network.

The page and its scripts are in docs/explore. This adds what comes from elsewhere: the runs, from the store of
records, and the figures of the notebooks nbs/app for readers without scripts.
`istar runs --explore FOLDER` writes the page of any other store.
"""
import base64
import json
import sys
from pathlib import Path

root = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(root))


def figures():
    "The notebooks' figures as PNG files, named by their `#| page-figure:` directives."
    for path in sorted((root/"nbs"/"app").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            named = [line.partition(":")[2].strip() for line in cell["source"] if line.startswith("#| page-figure:")]
            images = [o["data"]["image/png"] for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
            for name, image in zip(named, images): yield f"{name}.png", base64.b64decode(image)


def files():
    "Every file of the page: {name: bytes}; index.html is the page itself."
    from istar_nb.app.explorers import page_files
    return page_files(root/"results"/"runs") | dict(figures())


if __name__ == "__main__":
    if len(sys.argv) != 2: sys.exit("usage: python tools/explore.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files().items(): (folder/name).write_bytes(content)
    print(f"{folder/'index.html'}")
