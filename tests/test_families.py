"A user's own model, of many families, is measured from memory and from its folder alike."
import pytest
import torch
import transformers

from istar_nb.embeddings.reading import sentence_vectors
from istar_nb.report.comparing import compare
from istar_nb import measure
from istar_nb.text.encoders import LayerReader, hidden_states, load_encoder, text_part, tiny_tokenizer
from istar_nb.base.testing import Work
from istar_nb.base.states import HiddenStates, is_causal, layer_count
from istar_nb.penalties.regularizers import IStar, UnbiasedIStar
from istar_nb.training.runs import RunConfig
from istar_nb.training.training import train

TEXTS = ["a file", "read a line of it", "the network", "a pool of threads", "parse text", "a number"]

small = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
both = dict(d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64, decoder_start_token_id=0)
t5 = dict(d_model=16, d_kv=8, d_ff=16, num_layers=2, num_decoder_layers=1, num_heads=2, decoder_start_token_id=0)
grouped = small | dict(num_key_value_heads=1)
seen = small | dict(num_hidden_layers=1, image_size=28, patch_size=14)

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
    fsmt=("FSMTForConditionalGeneration", both | dict(langs=["en", "de"], src_vocab_size=1988, tgt_vocab_size=1988)),
    clip=("CLIPModel", dict(text_config=small, vision_config=seen)),
    siglip=("SiglipModel", dict(text_config=small, vision_config=seen)),
    gemma3=("Gemma3Model", dict(text_config=grouped | dict(head_dim=8), mm_tokens_per_image=4, vision_config=seen)))


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
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("fsmt", "t5", "t5_encoder",
                                    "xlnet")])    # which reads both ways, and whose own token is the last
def test_a_model_is_causal_if_later_words_change_nothing(family):
    model = text_part(family, made(family, 100))
    ids = torch.tensor([[2, 9, 11, 13, 3], [2, 9, 11, 17, 3]])
    mask = torch.ones_like(ids)
    with torch.no_grad():
        first, second = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1]
    assert is_causal(model) == torch.allclose(first[:3], second[:3], atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family, side", [*((family, "left") for family in FAMILIES),
                                          *((kind, "right") for kind in ("bert", "llama", "t5", "clip"))])
def test_a_model_in_memory_and_in_a_folder_measure_alike(family, side, tmp_path):
    "With padding before its texts, and a model of every kind with padding after them."
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


def saved(model, folder):
    "A folder of a model with a tokenizer beside it."
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer("roberta")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("file", "content", "said"), [
    ("config.json", "{", "damaged file: .*config.json"), ("config.json", "[]", "transformers can read: "),
    ("config.json", '{"model_type": "none"}', "transformers can read: .*`none`"),
    ("config.json", '{"model_type": "bert", "hidden_size": "x"}', "transformers can read: .*'hidden_size'"),
    ("model-00002-of-00004.safetensors", None, "missing or damaged file: .*model-00002"),
    ("model.safetensors.index.json", "{", "damaged file: "), ("tokenizer.json", "{", "damaged file: ")])
def test_a_file_that_is_missing_or_damaged_is_named(file, content, said, tmp_path):
    made("bert", 1988).save_pretrained(tmp_path, max_shard_size="20KB")
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    assert (tmp_path/file).is_file()
    if content is None: (tmp_path/file).unlink()
    else: (tmp_path/file).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=f"^`name` .*{said}") as error: measure(str(tmp_path), TEXTS)
    assert "no alias" not in str(error.value) and "\n" not in str(error.value)


def test_what_reads_no_text_is_an_error_of_one_line(tmp_path):
    vit = transformers.ViTModel(transformers.ViTConfig(**seen))
    for model in (str(saved(vit, tmp_path/"vit")), (vit, tiny_tokenizer("roberta"))):
        with pytest.raises(ValueError, match="reads pixel_values, and only models that read text are supported$"):
            measure(model, TEXTS)
    with pytest.raises(TypeError, match="a model of transformers, not Linear"):
        measure((torch.nn.Linear(2, 2), tiny_tokenizer("bert")), TEXTS)
    (tmp_path/"modules.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="sentence-transformers without layers"): measure(str(tmp_path), TEXTS)


def test_a_special_token_that_the_model_lacks_is_no_error(tmp_path):
    saved(model := made("bert", 1988), tmp_path)
    tokenizer = tiny_tokenizer("roberta")
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    (there,), (here,) = (measure(what, TEXTS).measures.values()
                         for what in (str(tmp_path), (model, tiny_tokenizer("roberta"))))
    assert there["pooled"]["isoscore"] == pytest.approx(here["pooled"]["isoscore"], abs=1e-6)


def test_a_model_that_mixes_texts_with_padding_says_so():
    torch.manual_seed(0)
    fnet = transformers.FNetModel(transformers.FNetConfig(vocab_size=1988, hidden_size=16, num_hidden_layers=2,
                                                          intermediate_size=16)).eval()
    mixing = fnet, tiny_tokenizer("roberta")
    for read in (measure, lambda model, texts: compare(model, model, texts), sentence_vectors):
        with pytest.warns(UserWarning, match="depends on which texts share a batch"): read(mixing, TEXTS)
    measure(mixing, TEXTS, batch_tokens=1)
    measure((made("bert", 1988), tiny_tokenizer("roberta")), TEXTS)


def test_layers_of_two_widths_are_fine_tuned_and_have_no_union(tmp_path):
    opt = transformers.OPTConfig(vocab_size=1988, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                                 ffn_dim=16, word_embed_proj_dim=8, do_layer_norm_before=False,
                                 max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=3)
    folder = saved(transformers.OPTModel(opt), tmp_path/"opt")
    record = train(RunConfig(task="stdlib-docs", model=str(folder), epochs=1, limit=64, validation_limit=64),
                   root=tmp_path, progress=False)
    end = record.epochs[-1]
    assert record.status == "done" and end["isoscore"] is None and end["isoscore_unbiased"] is None
    assert all(0 < score < 1 for score in end["isoscore_layers"])
    states = HiddenStates([torch.randn(4, 5, d) for d in (16, 16, 8)], torch.ones(4, 5))
    with pytest.raises(ValueError, match=r"`layers` have different dimensions \[8, 16\]"): IStar().collect([states])
    last = IStar(layers=2)
    last.collect([states])
    assert 0 < last(states) < 1 and 0 < UnbiasedIStar(layers=[-1])(states)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("side", ("left", "right"))
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_handed_over_one_by_one_are_those_that_the_model_returns(family, side):
    "To the last digit; where a family's layers have no module of their own, all are kept, which is said here."
    model = text_part(family, made(family, 100))
    ids = torch.randint(4, 100, (5, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(12) < torch.tensor([12, 9, 7, 4, 1])[:, None]
    batch = dict(input_ids=ids, attention_mask=mask.long() if side == "right" else mask.flip(1).long())
    with torch.no_grad(): wanted = hidden_states(model, batch)
    reader = LayerReader(model)
    for _ in range(2):    # as found, and as remembered
        handed = {}
        reader(batch, lambda l, states: handed.update({l: (states.layers[l].clone(), states.causal, len(states.kept))}))
        assert list(handed) == [0, 1, 2]
        for l, (x, causal, kept) in handed.items():
            assert torch.equal(x, wanted.layers[l]) and causal is wanted.causal
            assert kept == (3 if family in ("xlnet", "marian", "fsmt") else 1)
    handed = []
    LayerReader(model, [-1])(batch, lambda l, states: handed.append(l))
    assert handed == [2]


def test_layers_of_albert_are_calls_of_one_module_and_bigbird_pads_its_own():
    albert = load_encoder("tiny-albert")
    batch = albert.tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad(): wanted = hidden_states(albert.model, batch)
    handed = {}
    LayerReader(albert.model)(batch, lambda l, states: handed.update({l: states.layers[l]}))
    assert all(torch.equal(x, wanted.layers[l]) for l, x in handed.items()) and len(handed) == len(wanted.layers)
    torch.manual_seed(0)
    config = transformers.BigBirdConfig(vocab_size=100, block_size=4, num_random_blocks=1, **small)
    ids = torch.randint(4, 100, (2, 130))
    batch, handed = dict(input_ids=ids, attention_mask=torch.ones_like(ids)), {}
    reader = LayerReader(transformers.BigBirdModel(config).eval())
    reader(batch, lambda l, states: handed.update({l: states.layers[l].shape}))
    assert handed == dict.fromkeys(range(3), (2, 130, 16))


def test_a_decoder_keeps_no_keys_and_values(monkeypatch):
    seen, update = [], transformers.DynamicCache.update
    monkeypatch.setattr(transformers.DynamicCache, "update", lambda *args, **kw: seen.append(1) or update(*args, **kw))
    model = made("llama", 100).model
    batch = dict(input_ids=torch.full((2, 6), 5), attention_mask=torch.ones(2, 6, dtype=torch.long))
    with torch.no_grad(): model(**batch)
    assert len(seen) == 2
    with torch.no_grad(): hidden_states(model, batch)
    assert len(seen) == 2 and model.config.use_cache


def test_a_text_with_a_token_that_the_model_lacks_is_named(tmp_path):
    model, tokenizer = made("bert", 1988), tiny_tokenizer("roberta")
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    with pytest.raises(ValueError, match="`texts`: number 1 \\(counted from 0\\) holds the name of a special token"):
        measure((model, tokenizer), [TEXTS[0], "see <image> here", TEXTS[1]])


def test_states_and_cache_of_many_layers_are_not_kept():
    "A decoder of 12 layers: what its states and its keys and values would take is not."
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=32, num_hidden_layers=12, num_attention_heads=2, vocab_size=100,
                                      intermediate_size=32)
    model, ids = transformers.LlamaModel(config).eval(), torch.full((16, 16), 5)
    batch = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    def most(layers, places=None):
        reader, seen = LayerReader(model, layers), []
        reader.places = places
        with Work() as work: reader(batch, lambda l, states: seen.append(l))
        assert seen == ([12] if layers == [12] else list(range(13)))
        return work.peak
    alone, last, kept = most("all"), most([12]), most("all", {})
    layer = 16*16*32*4    # bytes of its states
    assert model.config.use_cache and alone < last + 2*layer and kept > alone + 8*layer, (alone, last, kept, layer)
    assert alone < 16*layer, (alone, layer)    # the keys and values alone would take 24
