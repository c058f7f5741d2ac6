"""Regimes and models by name; what is typed becomes a shape or is refused in one sentence; ranks by host; the bytes that a rank moves."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from collbench.errors import UsageError
from collbench.operations.traffic import Traffic
from collbench.plugins.training.workloads import shape
from collbench.plugins.training.workloads.registry import regime_named, regimes
from collbench.plugins.training.workloads.shape import model_named, models, shape_of, words
from collbench.plugins.training.workloads.step import Exchange, Shape, Step, bytes_of, moved_bytes

DATA, PIPELINE, EXPERTS = regime_named("data-parallel"), regime_named("pipeline"), regime_named("expert-parallel")
ALL = ((0, 1, 2, 3),)


def test_what_is_not_typed_is_the_models_own_or_bert_large_in_float32():
    shape = shape_of(DATA, {}, (0, 1))
    assert (shape.name, shape.parameters, shape.dtype, shape.element_bytes) == ("bert-large", 340 * 10**6, "float32", 4)
    assert shape.bucket_bytes == 25 * 1024 * 1024
    assert shape.gradient_bytes == 340 * 10**6 * 4
    assert (shape.hosts, shape.ranks) == ((0, 1), 2)
    shape = shape_of(DATA, {"model": "1.5B", "dtype": "bf16", "bucket": "1M"}, (0, 0))
    assert (shape.dtype, shape.element_bytes, shape.gradient_bytes, shape.bucket_bytes) == ("bfloat16", 2, 2 * 1500 * 10**6, 1024 * 1024)
    shape = shape_of(PIPELINE, {"model": "gpt2-xl", "sequence": "256", "microbatches": "3"}, (0, 1))
    assert (shape.layers, shape.hidden, shape.sequence, shape.microbatch, shape.microbatches) == (48, 1600, 256, 1, 3)
    assert shape_of(EXPERTS, {"imbalance": "1.5", "experts": "8", "top_k": "1"}, (0, 1)).options == {
        "imbalance": "1.5", "routing": "", "routings": "", "dispatch_dtype": "", "combine_dtype": "", "seed": "0",
    }  # fmt: skip
    assert shape_of(PIPELINE, {}, (0, 1)).options == {"stages": ""}


@pytest.mark.parametrize(("name", "typed", "sentence"), [
    ("data-parallel", {"bucket": "3"}, "--bucket 3 has no room for one float32: give 4 bytes or more, like 25M"),
    ("data-parallel", {"bucket": "much"}, "--bucket: size 'much' is not a valid number of bytes"),
    ("data-parallel", {"dtype": "int32"}, "--dtype int32 is not supported for training: choose float32, float64, bfloat16 or float16"),
    ("data-parallel", {"dtype": "e4m3"}, "--dtype float8_e4m3fn is not supported for training"),
    ("data-parallel", {"dtype": "real"}, "dtype 'real' is unknown"),
    ("data-parallel", {"model": "bart"}, "model 'bart' is unknown"),
    ("data-parallel", {"stages": "2"}, "--stages means nothing to data-parallel: leave it out; it takes --model, --dtype, --bucket"),
    ("data-parallel", {"top_k": "2"}, "--top-k means nothing to data-parallel"),
    ("parameter-server", {"update": "lazy\n"}, "--update 'lazy' is unknown: choose from synchronous, asynchronous, sharded"),
    ("parameter-server", {"servers": "none"}, "--servers 'none' is not valid"), ("pipeline", {"stages": "0"}, "--stages '0' is not valid"),
    ("tensor-parallel", {"tensor": "x"}, "--tensor 'x' is not valid"), ("expert-parallel", {"top_k": "x"}, "--top-k 'x' is not valid"),
    ("expert-parallel", {"seed": "1.5"}, "--seed '1.5' is not a valid seed"),
    ("expert-parallel", {"imbalance": "\x1b[2J"}, "--imbalance '?[2J' is not a number from 1 up"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence_before_the_places_of_ranks_are_known(name, typed, sentence):
    with pytest.raises(UsageError) as caught:
        shape_of(regime_named(name), typed, ())
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "many", "1e3", "10000000000", "²"])
@pytest.mark.parametrize("name", ["microbatches", "layers"])
def test_what_is_counted_is_a_whole_number_from_1_on(name, text):
    with pytest.raises(UsageError, match=f"--{name} '.*' .* 1 to 1,000,000,000"):
        shape_of(PIPELINE, {name: text}, (0, 1))


@pytest.mark.parametrize(("name", "more"), [("pipeline", ""), ("tensor-parallel", ""), ("expert-parallel", ", --top-k")])
def test_activations_that_fit_no_memory_are_refused(name, more):
    most = str(10**9)
    with pytest.raises(UsageError, match=f"1 TiB: .*--microbatch, --sequence, --hidden{more}$"):
        regime_named(name).step(shape_of(regime_named(name), {"hidden": most, "sequence": most}, (0, 0)))


@pytest.mark.parametrize("name", ["parameter-server", "expert-parallel"])
def test_a_table_between_too_many_ranks_is_refused(name):
    with pytest.raises(UsageError, match=r"100,000 ranks: .* 8,192"):
        regime_named(name).step(shape_of(regime_named(name), {}, (0,) * 100_000))


@pytest.mark.parametrize("regime", regimes().values(), ids=lambda regime: regime.name)
def test_every_option_has_a_default_and_a_line_of_help(regime):
    assert list(shape.help_of(regime)) == list(words(regime))
    assert all(shape.help_of(regime).values())
    assert set(regime.help) == set(regime.options)
    assert set(regime.takes) <= set(shape.HELP)
    shape_of(regime, words(regime), (0, 1))


def test_the_regimes_in_their_order_and_by_name_also_as_python_writes_it():
    assert list(regimes()) == [
        "data-parallel", "hierarchical", "parameter-server", "pipeline", "tensor-parallel", "expert-parallel", "fsdp",
    ]  # fmt: skip
    assert all(name == regime.name and regime.summary for name, regime in regimes().items())
    assert regime_named(" Data_Parallel ") is regimes()["data-parallel"]


@pytest.mark.parametrize(("name", "remedy"), [
    ("dp", r"did you mean ddp\?"), ("data\nparallel", r"did you mean data-parallel\?"), ("", "data-parallel, hierarchical, .*, fsdp"),
    ("xyz", "data-parallel, hierarchical, .*, fsdp"),
])  # fmt: skip
def test_an_unknown_one_is_one_printable_sentence_with_the_nearest_or_all_choices(name, remedy):
    with pytest.raises(UsageError, match=remedy) as caught:
        regime_named(name)
    assert str(caught.value).isprintable()


@pytest.mark.system
def test_finding_them_imports_no_numpy():
    code = "import sys; from collbench.plugins.training.workloads.registry import regimes; regimes(); "
    code += "print({'numpy', 'torch', 'mpi4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"


def on(*hosts):
    return Shape("made up", 1000, "float32", 4, 4096, hosts)


def test_ranks_that_take_turns_on_hosts_are_put_together_and_may_cross_them():
    assert shape.by_host(on(7, 2, 7, 2, 2)) == ((0, 2), (1, 3, 4))
    assert shape.host_after_host(on(7, 2, 7, 2, 2)) == (0, 2, 1, 3, 4)
    assert shape.everybody(on(7, 2, 7)) == ((0, 1, 2),)
    in_turn = on(0, 1, 0, 1)
    assert shape.blocks(shape.host_after_host(in_turn), 2) == ((0, 2), (1, 3))
    assert not shape.crossing(shape.blocks(shape.host_after_host(in_turn), 2), in_turn)
    assert shape.crossing(shape.blocks(range(4), 2), in_turn)
    assert shape.host_numbers(["node7", "node7", "node2", "node7"]) == (0, 0, 1, 0)
    assert shape.host_numbers([]) == ()
    assert shape.printable("a\x1b" + 50 * "b") == "a?" + 38 * "b"


@pytest.mark.parametrize(("hosts", "each"), [((0, 0, 1, 1), 2), ((0, 1, 2), 1), ((0, 0, 1), None), ((), None)])
def test_ranks_per_host_where_all_have_as_many(hosts, each):
    assert shape.ranks_per_host(on(*hosts)) == each


def test_the_models_are_sourced_and_the_sums_of_their_parts():
    assert list(models()) == ["resnet50", "bert-large", "gpt2-xl"]
    assert all(model.source.startswith("https://") for model in models().values())
    model = models()["gpt2-xl"]
    attention = 1600 * (3 * 1600) + 3 * 1600 + 1600 * 1600 + 1600  # queries, keys and values; the projection
    mlp = 1600 * (4 * 1600) + 4 * 1600 + (4 * 1600) * 1600 + 1600
    norms = 2 * (1600 + 1600)
    assert model.parameters == 50257 * 1600 + 1024 * 1600 + 48 * (attention + mlp + norms) + 2 * 1600
    assert (model.layers, model.hidden, model.sequence, model.vocabulary) == (48, 1600, 1024, 50257)
    model = models()["bert-large"]
    layer = 4 * (1024 * 1024 + 1024) + 1024 * 4096 + 4096 + 4096 * 1024 + 1024 + 2 * 2 * 1024
    body = (30522 + 512 + 2) * 1024 + 2 * 1024 + 24 * layer + 1024 * 1024 + 1024
    assert model.parameters == 340 * 10**6
    assert 0.98 * model.parameters < body < model.parameters
    assert (model.layers, model.hidden, model.sequence, model.vocabulary) == (24, 1024, 512, 30522)
    model = models()["resnet50"]
    assert model.parameters == 25_557_032
    assert (model.layers, model.hidden, model.sequence) == (0, 0, 0)
    assert model_named("BERT-Large").name == "bert-large"


@pytest.mark.parametrize(("text", "parameters"), [
    ("340M", 340 * 10**6), ("1.5B", 1500 * 10**6), ("7b", 7 * 10**9), ("2G", 2 * 10**9), (" 12k ", 12000), ("25557032", 25557032),
    ("0.001k", 1), ("1T", 10**12),
])  # fmt: skip
def test_a_plain_number_of_parameters_in_powers_of_1000(text, parameters):
    model = model_named(text)
    assert model.parameters == parameters
    assert (model.layers, model.hidden, model.sequence) == (0, 0, 0)


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


def step(*exchanges):
    return Step(exchanges, payload_bytes=0)


@pytest.mark.parametrize(("operation", "each"), [
    ("allreduce", 2 * 3 / 4 * 1200),  # each of 4 ranks sends three quarters twice
    ("allgather", 3 / 4 * 1200), ("reducescatter", 3 / 4 * 1200), ("broadcast", 1200), ("reduce", 1200), ("sendrecv", 1200),
])  # fmt: skip
def test_even_collectives_by_the_factor_of_busbw(operation, each):
    assert moved_bytes(step(Exchange(operation, ALL, 1200, "x")), 4) == (each,) * 4
    assert moved_bytes(step(Exchange(operation, ALL, 1200, "x", times=3)), 5) == (*(3 * each,) * 4, 0)


def test_uneven_parts_and_messages_add_up_by_rank():
    # Ranks 0 and 1 each push 400 bytes to rank 2, which keeps 100 of its own.
    push = Exchange("alltoallv", ((0, 1, 2),), 900, "push", traffic=Traffic("x", matrix=((0, 0, 400), (0, 0, 400), (0, 0, 100))))
    assert bytes_of(push, 3) == (400, 400, 800)
    assert bytes_of(Exchange(**{**asdict(push), "times": 2}), 3) == (800, 800, 1600)
    pairs = Exchange("p2p_bandwidth", ((0, 1), (2, 3)), 100, "to the next stage")
    assert moved_bytes(step(pairs, Exchange("allreduce", ((1, 2),), 40, "y")), 4) == (100, 140, 140, 100)
    with pytest.raises(UsageError, match=r"gradients: .*'allreduse': .*allgather, .*allreduce"):
        bytes_of(Exchange("allreduse", ALL, 4, "gradients"), 4)
