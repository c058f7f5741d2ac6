"""Models by name and by size: the table is sourced, and what is typed is read or refused in one sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.training.workloads.shape import model_named, models


def test_three_models_each_with_its_source():
    assert list(models()) == ["resnet50", "bert-large", "gpt2-xl"]
    assert all(model.source.startswith("https://") for model in models().values())


def test_gpt2_xl_is_the_sum_of_its_parts():
    model = models()["gpt2-xl"]
    attention = 1600 * (3 * 1600) + 3 * 1600 + 1600 * 1600 + 1600  # queries, keys and values; the projection
    mlp = 1600 * (4 * 1600) + 4 * 1600 + (4 * 1600) * 1600 + 1600
    norms = 2 * (1600 + 1600)
    assert model.parameters == 50257 * 1600 + 1024 * 1600 + 48 * (attention + mlp + norms) + 2 * 1600
    assert (model.layers, model.hidden, model.sequence, model.vocabulary) == (48, 1600, 1024, 50257)


def test_bert_large_is_the_papers_340_million_of_which_its_body_explains_335():
    model = models()["bert-large"]
    layer = 4 * (1024 * 1024 + 1024) + 1024 * 4096 + 4096 + 4096 * 1024 + 1024 + 2 * 2 * 1024
    body = (30522 + 512 + 2) * 1024 + 2 * 1024 + 24 * layer + 1024 * 1024 + 1024
    assert model.parameters == 340 * 10**6
    assert 0.98 * model.parameters < body < model.parameters
    assert (model.layers, model.hidden, model.sequence, model.vocabulary) == (24, 1024, 512, 30522)


def test_resnet50_has_no_size_that_its_layers_share():
    model = models()["resnet50"]
    assert model.parameters == 25_557_032
    assert (model.layers, model.hidden, model.sequence) == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [("340M", 340 * 10**6), ("1.5B", 1500 * 10**6), ("7b", 7 * 10**9), ("2G", 2 * 10**9), (" 12k ", 12000), ("25557032", 25557032),
     ("0.001k", 1), ("1T", 10**12)],
)  # fmt: skip
def test_a_plain_number_of_parameters_in_powers_of_1000(text, parameters):
    model = model_named(text)
    assert model.parameters == parameters
    assert (model.layers, model.hidden, model.sequence) == (0, 0, 0)


def test_names_may_be_written_large():
    assert model_named("BERT-Large").name == "bert-large"


@pytest.mark.parametrize("text", ["bert", "", "-3M", "1e9", "340 M", "3.M", "M", "٣M", "3MB"])
def test_an_unknown_model_is_one_sentence_with_the_choices(text):
    with pytest.raises(UsageError, match="resnet50, bert-large, gpt2-xl"):
        model_named(text)


@pytest.mark.parametrize("text", ["0", "0M", "1.5", "0.0001k", "1001T"])
def test_no_whole_number_of_parameters(text):
    with pytest.raises(UsageError, match=rf"model '{text}' .* 1 to 10\^15"):
        model_named(text)


@given(st.text(max_size=60))
def test_any_text_is_a_model_or_one_printable_sentence(text):
    try:
        assert model_named(text).parameters >= 1
    except UsageError as error:
        assert str(error).isprintable()
