"The lines that the README offers do what it says, as they are printed there."
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from istar_nb.text.encoders import load_encoder
from istar_nb.geometry.scores import isoscore_from_cov
from istar_nb.text.features import Collator, encode
from istar_nb.text.tasks import TASKS, load_task

README = Path(__file__).parents[1]/"README.md"


def printed_loop()->tuple[str,str]: # what comes before the batches, and one step
    "The penalty in a loop, as it is printed: one epoch begins, and one batch follows."
    block, = (block for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
              if "penalty" in block)
    before, step = block.split("    for batch in loader:\n")
    return before, textwrap.dedent(step)


def test_the_loop_trains_with_dropout_and_takes_the_reference_without():
    rows = [dict(sentence=row["sentence"], label=i % 2) for i, row in enumerate(load_task("stdlib-docs").train[:64])]
    torch.manual_seed(0)
    model, tokenizer = load_encoder("tiny-bert", TASKS["cola"])
    loader = torch.utils.data.DataLoader(encode(rows, TASKS["cola"], tokenizer), 16, collate_fn=Collator(tokenizer))
    scores, before_training = {}, torch.get_rng_state()
    for mode in (True, False):
        torch.set_rng_state(before_training)
        before, step = printed_loop()
        names = dict(model=model.train(mode), loader=loader, lam=0.1, epochs=1, batch=next(iter(loader)))
        torch.set_rng_state(before_training)
        exec(before, names)
        assert model.training and torch.equal(torch.get_rng_state(), before_training)    # dropout, whatever came
        scores[mode] = isoscore_from_cov(names["penalty"].cov_ref).item()
        exec(step, names)
        names["loss"].backward()
        assert names["loss"].isfinite() and model.get_input_embeddings().weight.grad.abs().sum() > 0
        model.zero_grad()
    assert scores[True] == pytest.approx(scores[False], rel=1e-6)


def test_a_package_index_shows_the_images_and_its_links_lead_somewhere():
    "The long description names whole addresses, each of a file that is here."
    text = subprocess.run([sys.executable, "setup.py", "--quiet", "--long-description"], cwd=README.parent,
                          capture_output=True, text=True, encoding="utf-8", check=True).stdout
    found = re.findall(r'\]\(([^)#]+)|src="([^"]+)"', text)
    assert len(found) == len(re.findall(r'\]\([^)#]+|src="', README.read_text(encoding="utf-8"))) > 10
    for link, image in found:
        assert (link or image).startswith("https://")
        kept = re.fullmatch(r"https://github.com/istar-nb/istar_nb/(blob|raw)/main/(.+)", link or image)
        if kept: assert (README.parent/kept[2]).exists() and kept[1] == ("raw" if image else "blob")
