"""What `watch` costs: `python benchmarks/watch.py [--help]`.

Times forward passes and training steps (forward, backward, AdamW) of a model on real sentences, plain and watched in
turn, and prints the ratios of their medians; writes nothing unless `--record` is given. The first updates, in which the
sample fills, are left out, as is the computing of the measures, which is done once at the end and timed apart.
"""
import argparse
import os
import statistics

from harness import ratio, store, timed, waited


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="minilm",
                        help="an alias, a folder, or `bert-base` for that shape with random weights")
    parser.add_argument("--batch", type=int, default=32, help="sentences in a batch")
    parser.add_argument("--length", type=int, default=64, help="tokens in a sentence, none of them padding")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", action="store_true", help="write results/benchmarks/watch-MODEL-DEVICE.json")
    args = parser.parse_args()

    import torch

    from istar_nb.text.encoders import load_encoder
    from istar_nb.geometry.watching import watch
    from istar_nb.text.tasks import load_task
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, tokenizer = load_encoder("minilm" if args.model == "bert-base" else args.model)
    if args.model == "bert-base":
        from transformers import AutoConfig, AutoModel
        model = AutoModel.from_config(AutoConfig.for_model("bert", vocab_size=len(tokenizer)))
    model.to(args.device)
    text = iter(tokenizer(" ".join(row["sentence"] for row in load_task("stdlib-docs").train), add_special_tokens=False,
                          verbose=False)["input_ids"])
    ids = torch.tensor([[next(text) for _ in range(args.length)] for _ in range(args.batch)], device=args.device)
    batch = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    load_before = os.getloadavg()[0]

    def forward():
        with torch.no_grad(): model.eval()(**batch)

    def training():
        model.train()(**batch).last_hidden_state.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def watched(step, seen):
        "The step with hooks in place, into metrics that exist already."
        def run():
            with watch(model) as fresh:
                fresh.metrics.update(seen.metrics)
                step()
        return run

    rows, computing = {}, 0.
    for name, step in [("forward", forward), ("training step", training)]:
        with watch(model) as seen:
            for _ in range(10): forward()
        times, rows[name] = timed({"plain": step, "watched": watched(step, seen)}, args.repeats, args.device), {}
        start = waited(args.device)
        seen.compute()
        computing = waited(args.device) - start
        for key in times:
            slower, quartiles = ratio(times[key], times["plain"])
            rows[name][key] = dict(seconds=statistics.median(times[key]), ratio=slower, ratio_quartiles=quartiles)
    print(f"{args.model}, {args.batch} x {args.length} tokens, every block, {args.threads} threads on {args.device}, "
          f"medians of {args.repeats}")
    for name, kinds in rows.items():
        for key, row in kinds.items(): print(f"{name:14} {key:18} {row['seconds']*1e3:9.1f} ms  {row['ratio']:.3f}x")
    print(f"all measures of all blocks at the end: {computing*1e3:.0f} ms")
    if args.record: store(f"watch-{args.model.replace('/', '-')}-{args.device}", load_before, model=args.model,
                          batch=args.batch, length=args.length, repeats=args.repeats, device=args.device, rows=rows,
                          computing=computing)


if __name__ == "__main__": main()
