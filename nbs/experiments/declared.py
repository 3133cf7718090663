"""Carry out the declared experiments: the most valuable runs first, all arms of a seed before the next seed.

`python declared.py STORE` on one machine; runs that have a record are left out, so it can be stopped and started
again. `--workers 8` trains eight runs at once on a GPU, and `--tiny` one tiny run of each arm, to try it. Records are
then copied to `results/runs`. The experiment on isotropy held begins if its pilot meets the rule on its page.
"""
import argparse
import sys
from dataclasses import replace
from pathlib import Path

from istar_nb.study.evidence import Store
from istar_nb.sweeps.grids import grid, load_records
from istar_nb.sweeps.sweeps import select
from istar_nb.sweeps.sweeps import sweep

folder = Path(__file__).with_name("grids")
ORDER = (("held-pilot",), ("held", "held-pairs"), ("direction", "direction-cola"),
         ("few-rows", "few-rows-1000", "few-rows-4000"), ("shrink-owed", "isolayer-owed"), ("protocol",))


def planned(names):
    "The configurations of some grids, seed by seed."
    configs = [c for name in names for c in grid(folder/f"{name}.yaml")]
    return [[c for c in configs if c.seed == seed] for seed in sorted({c.seed for c in configs})]


def tiny(config):
    "The same arm with a tiny encoder, few rows and few updates."
    return replace(config, task="stdlib-docs", model="tiny-bert", limit=176, epochs=1, batch_size=16, max_length=16,
                   validation_limit=32, precision="fp32",
                   stage_epochs=2 if config.method == "isolayer" else config.stage_epochs)


def pilot_meets_its_rule(store):
    "Whether the pilot learns, and is at most two points below a training of twice the length."
    runs = load_records(store, ids=[c.id for c in grid(folder/"held-pilot.yaml")])
    means = runs[runs.status == "done"].groupby(["task", "epochs"]).score.mean()
    least = dict(sst2=Store().majority["sst2"] + 0.02, stsb=0.05)
    print(means)
    return len(runs) == 8 and all(means[task, 3] > max(low, means[task, 6] - 0.02) for task, low in least.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="folder for the records")
    parser.add_argument("--workers", type=int, help="runs at once")
    parser.add_argument("--tiny", action="store_true", help="one tiny run of each arm")
    given = parser.parse_args()
    for names in ORDER:
        seeds = planned(names)
        if given.tiny: seeds = [list({c.id: c for c in map(tiny, seeds[0])}.values())]
        elif names == ("protocol",):
            plain, penalised = ([c for configs in seeds for c in configs if (c.method == "none") == none]
                                for none in (True, False))
            sweep(plain, root=given.store, workers=given.workers)
            select(penalised, selection_seeds=range(len(seeds)), by=("task", "tokens"), root=given.store,
                   workers=given.workers)
            break
        for configs in seeds: sweep(configs, root=given.store, workers=given.workers, checkpoint_every=25)
        if names == ("held-pilot",) and not given.tiny and not pilot_meets_its_rule(given.store):
            sys.exit("the pilot does not meet its rule: the page says what follows")
    failed = load_records(given.store).query("status == 'failed'")
    print(f"{len(failed)} runs failed")


if __name__ == "__main__": main()
