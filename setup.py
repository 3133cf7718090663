"All settings live in settings.ini; edit there, not here."
import re
import shlex
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

here = Path(__file__).parent


class build_with_page(build_py):
    "Adds docs/explore, the page for `istar runs --explore`; an editable install reads it where it is."
    def run(self):
        super().run()
        if self.editable_mode: return
        self.copy_tree(str(here/"docs"/"explore"), str(Path(self.build_lib, cfg["lib_name"], "page")))


parser = ConfigParser(delimiters=["="])
parser.read(here/"settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]
suffix = "_requirements"


def description():
    "README.md, whose links and images point to the repository, because a package index shows the text alone."
    text = (here/"README.md").read_text(encoding="utf-8")
    text = re.sub(r'(?<=src=")(?!https?:)', f"{cfg['git_url']}/raw/{cfg['branch']}/", text)
    return re.sub(r"(?<=\]\()(?!https?:|#)", f"{cfg['git_url']}/blob/{cfg['branch']}/", text)


setup(
    name=cfg["lib_name"], version=cfg["version"], description=cfg["description"],
    keywords=cfg["keywords"].split(), author=cfg["author"], license="Apache-2.0", url=cfg["git_url"],
    classifiers=["Development Status :: 3 - Alpha", "Intended Audience :: Science/Research",
                 "Natural Language :: English",
                 *[f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)]],
    packages=find_packages(include=[cfg["lib_path"], cfg["lib_path"]+".*"]),
    package_data={cfg["lib_name"]: ["py.typed", "*.pyi"]},
    python_requires=">="+cfg["min_python"],
    install_requires=shlex.split(cfg["requirements"]),
    extras_require={key.removesuffix(suffix): shlex.split(reqs) for key,reqs in cfg.items() if key.endswith(suffix)},
    project_urls={"Documentation": cfg["doc_host"]+cfg["doc_baseurl"], "Source": cfg["git_url"],
                  "Issues": cfg["git_url"]+"/issues", "Changes": cfg["git_url"]+"/blob/main/CHANGELOG.md"},
    long_description=description(), long_description_content_type="text/markdown",
    entry_points={"console_scripts": shlex.split(cfg["console_scripts"]),
                  # other nbdev projects link to the names here
                  "nbdev": [f'{cfg["lib_name"]}={cfg["lib_path"]}._modidx:d']},
    cmdclass={"build_py": build_with_page},
    zip_safe=False,
)
