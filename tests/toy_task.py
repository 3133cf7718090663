"A task and a model that are read in no time, for tests that start many processes."
import gzip
import json
import random


def write_model(folder):
    "Write a tiny model and its tokenizer, whose vocabulary takes seconds to make; returns the folder."
    import torch

    from istar_nb.text.encoders import load_encoder
    torch.manual_seed(0)
    for part in load_encoder("tiny-bert"): part.save_pretrained(folder)
    return folder


def write_still_model(folder):
    "Write a tiny model without dropout, and its tokenizer; returns the folder as text."
    import torch

    from istar_nb.text.encoders import load_encoder
    torch.manual_seed(0)
    model, tokenizer = load_encoder("tiny-bert")
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_task(folder, rows=240, seed=0, validation=40):
    "Write sentences of made-up words, some of which go with the label, in the layout of sst2; returns the folder."
    draw, place = random.Random(seed), folder/"glue"/"sst2"
    words = {label: [a + b for a in ("ba", "do", "ki")[:2 + label] for b in ("lu", "re", "mo", "sa")]
             for label in (0, 1)}
    place.mkdir(parents=True)
    for split, n in (("train", rows), ("validation", validation)):
        labels = [draw.randrange(2) for _ in range(n)]
        lines = [json.dumps(dict(sentence=" ".join(draw.choice(words[label]) for _ in range(draw.randrange(4, 12))),
                                 label=label)) for label in labels]
        with gzip.open(place/f"{split}.jsonl.gz", "wt", encoding="utf-8") as f: f.write("\n".join(lines) + "\n")
    return folder
