"""What `CollapseAlarm` costs: `python benchmarks/alarm.py [--help]`.

Times in turn a training step (forward, backward, AdamW) of a model, what the alarm's hook does with its vectors, and a
look at those of all steps since the last one. The cost is that of the hook and of a step's share of a look, against
the step.
Writes results/benchmarks/alarm.json when `--record` is given.
"""
import argparse
import os
from statistics import median

from harness import store, timed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch", type=int, default=32, help="sentences in a batch")
    parser.add_argument("--length", type=int, default=64, help="tokens in a sentence, none of them padding")
    parser.add_argument("--every", type=int, default=100, help="steps between two looks")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/alarm.json")
    args = parser.parse_args()

    import torch

    from istar_nb.embeddings.alarm import CollapseAlarm
    from istar_nb.embeddings.collapse import stream_kinds
    from istar_nb.text.encoders import load_encoder
    load_before = os.getloadavg()[0]
    torch.manual_seed(0)
    model, tokenizer = load_encoder(args.model)
    ids = torch.randint(1000, len(tokenizer), (args.batch, args.length))
    batch = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step():
        model.train()(**batch).last_hidden_state.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    alarm, rows = CollapseAlarm(), torch.randn(args.batch, model.config.hidden_size) + 1
    with alarm.attach(model):
        step()    # the hooks find what they look for
        for _ in range(args.every): alarm.metric.update(rows)
    metric = alarm.metric
    found = timed(dict(step=step, hook=lambda: metric.update(rows), look=lambda: stream_kinds(metric.halves)),
                  args.repeats)
    whole, hook, look = (median(found[name]) for name in ("step", "hook", "look"))
    figures = dict(model=args.model, batch=args.batch, length=args.length, every=args.every,
                   threads=torch.get_num_threads(),
                   step_ms=round(1000*whole, 1), hook_ms=round(1000*hook, 2), look_ms=round(1000*look, 1),
                   cost=round((hook + look/args.every)/whole, 5))
    print(figures)
    if args.record: store("alarm", load_before, **figures)


if __name__ == "__main__": main()
