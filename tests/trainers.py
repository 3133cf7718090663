"What tests of other people's training loops share."
import torch
from torch import nn
from transformers import TrainerCallback


class KeepGradients(TrainerCallback):
    "Keeps what the optimizer is about to use."
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


class MeanOfPairs(nn.Module):
    "A loss of sentence-transformers that is a mean over pairs."
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features, labels):
        a, b = (self.model(f)["sentence_embedding"] for f in features)
        return ((a*b).sum(1) - labels).square().mean()


def without_dropout(model):
    "The model, drawing nothing in train mode."
    for m in model.modules():
        if isinstance(m, nn.Dropout): m.p = 0.
        if hasattr(m, "dropout_prob"): m.dropout_prob = 0.    # of attention, before transformers 5
    return model


def sentence_pairs(rows):
    "MiniLM as sentence-transformers has it, without dropout, and a labelled pair for every two rows."
    from datasets import Dataset
    from istar_nb.text.encoders import minilm_folder
    from sentence_transformers import SentenceTransformer
    model, half = without_dropout(SentenceTransformer(str(minilm_folder()), device="cpu")), len(rows)//2
    model.model_card_data.widget = [dict(text="")]
    sentences = [row["sentence"] for row in rows]
    return model, Dataset.from_dict(dict(text=sentences[:half], other=sentences[half:],
                                         label=[float(i % 2) for i in range(half)]))
