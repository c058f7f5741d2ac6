"""Regimes by name; what was typed becomes a shape, or is refused before any rank starts; groups of ranks by host."""

import subprocess
import sys

import pytest

from collbench.errors import UsageError
from collbench.plugins.training.workloads.registry import regime_named, regimes
from collbench.plugins.training.workloads.shape import (
    HELP,
    blocks,
    by_host,
    crossing,
    everybody,
    help_of,
    host_after_host,
    host_numbers,
    printable,
    ranks_per_host,
    shape_of,
    words,
)  # fmt: skip
from collbench.plugins.training.workloads.step import Shape

DATA, PIPELINE, EXPERTS = regime_named("data-parallel"), regime_named("pipeline"), regime_named("expert-parallel")


def test_nothing_typed_is_bert_large_in_float32_in_buckets_of_25_mib():
    shape = shape_of(DATA, {}, (0, 1))
    assert (shape.name, shape.parameters, shape.dtype, shape.element_bytes) == ("bert-large", 340 * 10**6, "float32", 4)
    assert shape.bucket_bytes == 25 * 1024 * 1024
    assert shape.gradient_bytes == 340 * 10**6 * 4
    assert (shape.hosts, shape.ranks) == ((0, 1), 2)


def test_a_type_of_half_the_size_halves_the_gradients():
    shape = shape_of(DATA, {"model": "1.5B", "dtype": "bf16", "bucket": "1M"}, (0, 0))
    assert (shape.dtype, shape.element_bytes, shape.gradient_bytes, shape.bucket_bytes) == ("bfloat16", 2, 2 * 1500 * 10**6, 1024 * 1024)


def test_a_transformers_sizes_are_the_models_unless_they_are_typed():
    shape = shape_of(PIPELINE, {"model": "gpt2-xl", "sequence": "256", "microbatches": "3"}, (0, 1))
    assert (shape.layers, shape.hidden, shape.sequence, shape.microbatch, shape.microbatches) == (48, 1600, 256, 1, 3)


def test_a_regimes_own_words_are_its_options():
    assert shape_of(EXPERTS, {"imbalance": "1.5", "experts": "8", "top_k": "1"}, (0, 1)).options == {
        "imbalance": "1.5", "routing": "", "routings": "", "dispatch_dtype": "", "combine_dtype": "", "seed": "0",
    }  # fmt: skip
    assert shape_of(PIPELINE, {}, (0, 1)).options == {"stages": ""}


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ({"bucket": "0"}, "--bucket: size '0' is not a whole, positive number of bytes: the smallest size is 1"),
        ({"bucket": "3"}, "--bucket 3 has no room for one float32: give 4 bytes or more, like 25M"),
        ({"bucket": "much"}, "--bucket: size 'much' is not a valid number of bytes"),
        ({"dtype": "int32"}, "--dtype int32 is not supported for training: choose float32, float64, bfloat16 or float16"),
        ({"dtype": "e4m3"}, "--dtype float8_e4m3fn is not supported for training"),
        ({"dtype": "real"}, "dtype 'real' is unknown"),
        ({"model": "bart"}, "model 'bart' is unknown"),
        ({"stages": "2"}, "--stages means nothing to data-parallel: leave it out; it takes --model, --dtype, --bucket"),
        ({"top_k": "2"}, "--top-k means nothing to data-parallel"),
    ],
)
def test_what_cannot_be_is_one_sentence(typed, sentence):
    with pytest.raises(UsageError) as caught:
        shape_of(DATA, typed, ())
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "typed", "sentence"),
    [
        ("parameter-server", {"update": "lazy\n"}, "--update 'lazy' is unknown: choose from synchronous, asynchronous, sharded"),
        ("parameter-server", {"update": "sharded", "servers": "1"}, "--update sharded with one server has no shards"),
        ("parameter-server", {"servers": "none"}, "--servers 'none' is not valid"),
        ("pipeline", {"stages": "0"}, "--stages '0' is not valid"),
        ("tensor-parallel", {"tensor": "x"}, "--tensor 'x' is not valid"),
        ("expert-parallel", {"imbalance": "\x1b[2J"}, "--imbalance '?[2J' is not a number from 1 up"),
        ("expert-parallel", {"seed": "1.5"}, "--seed '1.5' is not a valid seed"),
    ],
)
def test_a_regimes_own_words_are_read_before_the_places_of_ranks_are_known(name, typed, sentence):
    with pytest.raises(UsageError) as caught:
        shape_of(regime_named(name), typed, ())
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "many", "1e3", "10000000000", "²"])
@pytest.mark.parametrize("name", ["microbatches", "layers"])
def test_what_is_counted_is_a_whole_number_from_1_on(name, text):
    with pytest.raises(UsageError, match=f"--{name} '.*' .* 1 to 1,000,000,000"):
        shape_of(PIPELINE, {name: text}, (0, 1))


def test_a_layer_too_many_words_has_a_dash():
    with pytest.raises(UsageError, match="--top-k 'x' is not valid"):
        shape_of(EXPERTS, {"top_k": "x"}, (0, 1))


@pytest.mark.parametrize(("name", "more"), [("pipeline", ""), ("tensor-parallel", ""), ("expert-parallel", ", --top-k")])
def test_activations_that_fit_no_memory_are_refused(name, more):
    most = str(10**9)
    with pytest.raises(UsageError, match=f"1 TiB: .*--microbatch, --sequence, --hidden{more}$"):
        regime_named(name).step(shape_of(regime_named(name), {"hidden": most, "sequence": most}, (0, 0)))


@pytest.mark.parametrize("name", ["parameter-server", "expert-parallel"])
def test_a_table_between_too_many_ranks_is_refused(name):
    with pytest.raises(UsageError, match=r"100,000 ranks: .* 8,192"):
        regime_named(name).step(shape_of(regime_named(name), {}, (0,) * 100_000))


def test_hosts_are_numbered_as_they_appear():
    assert host_numbers(["node7", "node7", "node2", "node7"]) == (0, 0, 1, 0)
    assert host_numbers([]) == ()


@pytest.mark.parametrize("regime", regimes().values(), ids=lambda regime: regime.name)
def test_every_option_has_a_default_and_a_line_of_help(regime):
    assert list(help_of(regime)) == list(words(regime))
    assert all(help_of(regime).values())
    assert set(regime.help) == set(regime.options)
    assert set(regime.takes) <= set(HELP)
    shape_of(regime, words(regime), (0, 1))


def test_the_seven_regimes_in_their_order():
    assert list(regimes()) == [
        "data-parallel", "hierarchical", "parameter-server", "pipeline", "tensor-parallel", "expert-parallel", "fsdp",
    ]  # fmt: skip
    assert all(name == regime.name and regime.summary for name, regime in regimes().items())


def test_by_name_also_as_python_writes_it():
    assert regime_named(" Data_Parallel ") is regimes()["data-parallel"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("dp", r"did you mean ddp\?"),
        ("data\nparallel", r"did you mean data-parallel\?"),
        ("", "data-parallel, hierarchical, .*, fsdp"),
        ("xyz", "data-parallel, hierarchical, .*, fsdp"),
    ],
)
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


def test_ranks_that_take_turns_on_hosts_are_put_together():
    assert by_host(on(7, 2, 7, 2, 2)) == ((0, 2), (1, 3, 4))
    assert host_after_host(on(7, 2, 7, 2, 2)) == (0, 2, 1, 3, 4)
    assert everybody(on(7, 2, 7)) == ((0, 1, 2),)


@pytest.mark.parametrize(("hosts", "each"), [((0, 0, 1, 1), 2), ((0, 1, 2), 1), ((0, 0, 1), None), ((), None)])
def test_ranks_per_host_where_all_have_as_many(hosts, each):
    assert ranks_per_host(on(*hosts)) == each


def test_blocks_and_whether_they_cross_hosts():
    shape = on(0, 1, 0, 1)
    assert blocks(host_after_host(shape), 2) == ((0, 2), (1, 3))
    assert not crossing(blocks(host_after_host(shape), 2), shape)
    assert crossing(blocks(range(4), 2), shape)


def test_text_of_the_user_is_short_and_printable():
    assert printable("a\x1b" + 50 * "b") == "a?" + 38 * "b"
