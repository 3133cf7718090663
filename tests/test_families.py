"A user's own model, of many families, is measured from memory and from its folder alike."
import pytest
import torch
import transformers

from istar_nb import measure
from istar_nb.text.encoders import tiny_tokenizer
from istar_nb.base.states import layer_count

TEXTS = ["a file", "read a line of it", "the network", "a pool of threads", "parse text", "a number"]

small = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
both = dict(d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64, decoder_start_token_id=0)
t5 = dict(d_model=16, d_kv=8, d_ff=16, num_layers=2, num_decoder_layers=1, num_heads=2, decoder_start_token_id=0)
grouped = small | dict(num_key_value_heads=1)

FAMILIES = dict(
    bert=("BertForMaskedLM", small), roberta=("RobertaModel", small), electra=("ElectraForPreTraining", small),
    modernbert=("ModernBertModel", small | dict(global_attn_every_n_layers=2)),
    distilbert=("DistilBertModel", dict(dim=16, n_layers=2, n_heads=2, hidden_dim=16)),
    xlnet=("XLNetLMHeadModel", dict(d_model=16, n_layer=2, n_head=2, d_inner=16)),
    gpt2=("GPT2LMHeadModel", dict(n_embd=16, n_layer=2, n_head=2)), llama=("LlamaForCausalLM", grouped),
    qwen3=("Qwen3Model", grouped | dict(head_dim=8)), mixtral=("MixtralModel", grouped | dict(num_local_experts=2)),
    mamba=("MambaModel", dict(hidden_size=16, num_hidden_layers=2, state_size=4)),
    bart=("BartForConditionalGeneration", both), marian=("MarianMTModel", both), t5=("T5ForConditionalGeneration", t5),
    t5_encoder=("T5EncoderModel", t5),
    gemma3=("Gemma3Model", dict(
        text_config=grouped | dict(head_dim=8), mm_tokens_per_image=4,
        vision_config=dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                           image_size=28, patch_size=14))))


def made(family, words):
    "A small model with random weights."
    name, options = FAMILIES[family]
    kind = getattr(transformers, name)
    ids = dict(vocab_size=words, pad_token_id=0, bos_token_id=2, eos_token_id=3)
    if "text_config" in options: options = options | dict(text_config=options["text_config"] | ids)
    else: options = ids | options
    torch.manual_seed(0)
    return kind(kind.config_class(**options)).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("side", ("left", "right"))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_in_memory_and_in_a_folder_measure_alike(family, side, tmp_path):
    tokenizer = tiny_tokenizer("bert")
    tokenizer.model_input_names, tokenizer.padding_side = ["input_ids", "attention_mask"], side
    model = made(family, len(tokenizer))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    tokenizer.save_pretrained(tmp_path)
    (here,), (there,) = (measure(what, TEXTS).measures.values() for what in ((model, tokenizer), str(tmp_path)))
    assert list(here) == list(there) == ["0", "1", "2", "pooled"]
    for layer in here: assert here[layer]["isoscore"] == pytest.approx(there[layer]["isoscore"], abs=1e-5)


def test_layers_of_a_model_for_text_and_images(tmp_path):
    assert layer_count(made("gemma3", 50)) == 2
    assert layer_count(torch.nn.Linear(2, 2)) is None
