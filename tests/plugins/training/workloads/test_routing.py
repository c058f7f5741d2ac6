"""Token counts of a mixture of experts: generators have the distributions of their names, files are read or rejected, copies are kept."""

import io
import zipfile
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.operations.dtypes import dtype_named
from collbench.operations.traffic import elements
from collbench.plugins.training.workloads.expert_parallel import shared_evenly
from collbench.plugins.training.workloads.registry import regime_named
from collbench.plugins.training.workloads.routing import KINDS, Generator, even, generate, kinds_with, parse_routing, zipf_shares
from collbench.plugins.training.workloads.routing_files import read_counts
from collbench.plugins.training.workloads.shape import shape_of

SMALL = {"model": "1M", "layers": "2", "hidden": "8", "sequence": "64", "top_k": "2", "experts": "8"}
QUARTET = (0, 0, 1, 1)
COUNTS = np.arange(2 * 3 * 4, dtype=np.int64).reshape(2, 3, 4) + 1  # 2 steps, 3 layers, 4 experts
RANKED = np.stack([COUNTS, COUNTS + 5], axis=2)
HEAD = b"step,layer,expert,tokens\n"


def laid_out(typed, hosts=QUARTET):
    regime = regime_named("expert-parallel")
    shape = shape_of(regime, {**SMALL, **typed}, hosts)
    return regime.step(shape)


def shape_with(**fields):
    return replace(shape_of(regime_named("expert-parallel"), SMALL, QUARTET), **fields)


def received(tokens):
    """[steps × layers × ranks] tokens of each rank's experts."""
    return tokens.sum(axis=2)


@pytest.mark.parametrize(("experts", "top_k", "exponent"), [(8, 1, 1.0), (64, 6, 1.2), (8, 4, 2.0), (5, 5, 0.7), (256, 8, 0.0)])
def test_the_kinds_of_tokens_have_exactly_the_requested_shares(experts, top_k, exponent):
    shares = zipf_shares(experts, top_k, exponent)
    kinds = kinds_with(shares, top_k, np.random.default_rng(1).permutation(experts))
    assert shares.sum() == pytest.approx(top_k) and shares.max() <= 1 + 1e-12
    assert (kinds.experts.sum(axis=1) == top_k).all() and set(np.unique(kinds.experts)) <= {0.0, 1.0}
    assert kinds.shares @ kinds.experts == pytest.approx(shares, abs=1e-9)
    free = shares < 1 - 1e-9
    expected = np.arange(1, experts + 1) ** -exponent
    assert shares[free] / expected[free] == pytest.approx(np.full(free.sum(), (shares[free] / expected[free])[:1].sum()))


def test_counts_of_zipf_are_those_of_its_law():
    shape = shape_with(hosts=(0,) * 8, layers=3, top_k=1, sequence=20_000)
    tokens = generate(parse_routing("zipf:1.1"), shape, 2, seed=5)
    expected = np.arange(1, 9) ** -1.1
    expected = np.sort(8 * 20_000 * expected / expected.sum())
    for counts in received(tokens).reshape(-1, 8):
        assert np.all(np.abs(np.sort(counts) - expected) < 5 * np.sqrt(expected)), "five standard deviations of a count"
    popular = received(tokens).argmax(axis=2)
    assert (popular[0] == popular[1]).all(), "the same experts stay popular"
    assert (tokens[0] != tokens[1]).any(), "but each step has other tokens"


def test_the_hot_set_of_drift_moves_by_one_expert():
    shape = shape_with(hosts=(0,) * 8, layers=2, sequence=4000)
    tokens = generate(parse_routing("drift:0.6,hot=3,every=2"), shape, 8, seed=0)
    copies = 8 * 4000 * 2
    sets = []
    for counts in received(tokens)[:, 0]:
        hot = np.argsort(counts)[-3:]
        assert counts[hot].sum() == pytest.approx(0.6 * copies, rel=0.02)
        sets.append(frozenset(hot.tolist()))
    shared = [len(before & after) for before, after in pairwise(sets)]
    assert shared == [3, 2, 3, 2, 3, 2, 3] and not sets[0] & sets[6]


@pytest.mark.parametrize(("text", "experts", "top_k", "limit"), [
    ("groups:8,limit=4", 256, 8, 4), ("groups:4,limit=1", 16, 4, 1), ("groups:8,limit=2,zipf=1.5", 64, 6, 2), ("groups:3", 12, 2, 1),
])  # fmt: skip
def test_no_token_uses_more_groups_than_the_limit(text, experts, top_k, limit):
    generator = parse_routing(text)
    kinds = KINDS["groups"](generator, experts, top_k, np.random.default_rng(3))(0)
    used = kinds.experts.reshape(len(kinds.experts), int(generator.value), -1).any(axis=2).sum(axis=1)
    assert used.max() == limit and (kinds.experts.sum(axis=1) == top_k).all()
    assert kinds.shares.sum() == pytest.approx(1)
    unlimited = Generator("groups", generator.value, (("limit", generator.value),))
    free = KINDS["groups"](unlimited, experts, top_k, np.random.default_rng(3))(0).experts
    assert free.reshape(len(free), int(generator.value), -1).any(axis=2).sum(axis=1).max() > limit, "the limit has an effect"


@pytest.mark.parametrize("text", ["zipf:1.3", "drift:0.5,hot=2", "groups:4,limit=2"])
def test_every_rank_sends_all_copies_of_its_tokens_and_a_seed_gives_the_same_again(text):
    shape = shape_with(sequence=100, microbatch=3)
    first, again, other = (generate(parse_routing(text), shape, 3, seed) for seed in (7, 7, 8))
    assert first.shape == (3, 2, 4, 4) and (first.sum(axis=3) == 2 * 100 * 3).all() and (first >= 0).all()
    assert (first == again).all() and (first != other).any()


@given(total=st.integers(1, 10**6), n=st.integers(2, 9))
def test_an_even_routing_has_the_same_tokens_and_differs_by_one_at_most(total, n):
    tokens = even(total, n)
    assert tokens.sum() == total and np.ptp(tokens) <= 1
    assert np.ptp(tokens.sum(axis=0)) <= 1 and np.ptp(tokens.sum(axis=1)) <= 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["zipf:1.2", "drift:0.5,hot=2", "groups:4"]), st.sampled_from(["float8_e4m3fn", "bfloat16"]))
def test_what_is_dispatched_comes_back_in_its_own_type(text, dtype):
    routing = laid_out({"routing": text, "dispatch_dtype": dtype, "combine_dtype": "float16", "routings": "2"}).routing
    dispatch, combine = routing.ways
    assert (dispatch.dtype, combine.dtype) == (dtype, "float16")
    assert (dispatch.token_bytes, combine.token_bytes) == (8 * dtype_named(dtype).size, 8 * 2)
    for step, layer in np.ndindex(2, 2):
        there, back = (routing.traffic(step, layer, way) for way in routing.ways)
        most = int(max(there.tokens.sum(axis=0).max(), there.tokens.sum(axis=1).max()))
        sent, returned = elements(there, 4, most * 8), elements(back, 4, most * 8)
        assert (sent == returned.T).all() and (sent == 8 * routing.tokens[step, layer]).all()


def test_the_planned_exchanges_are_even_ones_of_as_many_tokens_in_the_types_of_both_ways():
    step = laid_out({"dispatch_dtype": "e4m3", "combine_dtype": "bfloat16", "imbalance": "2"})
    assert [each.dtype for each in step.exchanges] == ["float8_e4m3fn", "bfloat16"] * 2 and step.routing is None
    assert [2 * each.size_bytes for each in step.exchanges[::2]] == [each.size_bytes for each in step.exchanges[1::2]]
    step = laid_out({"routing": "zipf:2"})
    assert step.routing.tokens.shape == (8, 2, 4, 4)
    assert {each.size_bytes for each in step.exchanges} == {64 * 2 * 8 * 4} and {each.times for each in step.exchanges} == {2}
    assert step.routing.imbalance(0) > 1.5


def test_the_busiest_rank_and_the_imbalance_of_a_step():
    tokens = np.zeros((1, 2, 2, 2), np.int64)
    tokens[0, 0], tokens[0, 1] = [[1, 3], [1, 3]], [[3, 1], [2, 2]]
    routing = replace(laid_out({"routing": "zipf:1", "experts": "2"}, (0, 0)).routing, tokens=tokens, steps=(0,))
    assert routing.busiest(0) == (1, 9 / 16)
    assert routing.imbalance(0) == (6 + 5) / 8, "the busiest rank of each layer decides how long it takes"
    assert routing.totals(0) == (8, 8)


def csv_of(tokens, first_step=0, first_layer=0):
    names = ["step", "layer", *(["rank"] if tokens.ndim == 4 else []), "expert"]
    lines = [",".join([*names, "tokens"])]
    for index, value in np.ndenumerate(tokens):
        lines.append(",".join(map(str, [index[0] + first_step, index[1] + first_layer, *index[2:], value])))
    return ("\n".join(lines) + "\n").encode()


def npz_of(tokens, **more):
    file = io.BytesIO()
    np.savez_compressed(file, tokens=tokens, **more)
    return file.getvalue()


def parquet_of(counts, **changed):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    index = np.indices(counts.shape).reshape(counts.ndim, -1)
    names = ["step", "layer", *(["rank"] if counts.ndim == 4 else []), "expert"]
    file = io.BytesIO()
    parquet.write_table(arrow.table({**dict(zip(names, index, strict=True)), "tokens": counts.ravel(), **changed}), file)
    return file.getvalue()


WRITERS = {".csv": csv_of, ".npz": npz_of, ".parquet": parquet_of}


def written(folder, content, suffix=".csv"):
    path = folder / f"tokens{suffix}"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("tokens", [COUNTS, RANKED], ids=["all ranks", "by rank"])
def test_counts_come_back_from_each_format(suffix, tokens, tmp_path):
    found = read_counts(written(tmp_path, WRITERS[suffix](tokens), suffix))
    assert found.steps == (0, 1) and found.ranked == (tokens.ndim == 4)
    assert (found.tokens == (tokens if tokens.ndim == 4 else tokens[:, :, None])).all()


def test_columns_may_have_any_order_and_steps_and_layers_any_first_number(tmp_path):
    lines = csv_of(COUNTS, first_step=100, first_layer=3).decode().splitlines()
    shuffled = [lines[0], *reversed(lines[1:])]
    swapped = "\r\n".join(f"x,{','.join(reversed(line.split(',')))}" for line in shuffled)
    found = read_counts(written(tmp_path, b"\xef\xbb\xbf" + swapped.encode()))
    assert found.steps == (100, 101) and (found.tokens[:, :, 0] == COUNTS).all()


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(1, 7))
def test_without_ranks_every_rank_has_the_same_share(tokens, ranks):
    found = shared_evenly(np.array(tokens), ranks)
    assert (found.sum(axis=0) == tokens).all()
    assert np.ptp(found, axis=0).max() <= 1 and np.ptp(found.sum(axis=1)) <= 1


def test_a_files_layers_and_experts_are_the_models_and_routings_are_evenly_spaced(tmp_path):
    tokens = np.full((6, 5, 8), 3)
    tokens[:, 0, 0] = range(6)
    path = written(tmp_path, csv_of(tokens, first_step=10))
    typed = {"routing": str(path), "routings": "3", "microbatches": "2", "experts": ""}
    routing = laid_out(typed).routing
    assert (routing.steps, routing.experts, routing.layers, routing.times) == ((10, 12, 14), 8, 5, 2)
    assert routing.tokens[1].sum() == tokens[2].sum()
    assert routing.received(2)[0].tolist() == [4 + 3, 6, 6, 6]


BAD_FILES = [
    (".txt", b"", "suffix must be one of .csv, .npz, .parquet"), (".csv", b"", "no column 'step'"), (".csv", HEAD, "has no rows"),
    (".csv", b"step,layer,expert\n0,0,0\n", "no column 'tokens'"),
    (".csv", b"step,layer,expert,tokens,tokens\n0,0,0,1,1\n", "more than one column 'tokens'"),
    (".csv", HEAD + b"0,0,0\n", "line 2: 3 fields, but the header has 4"),
    (".csv", HEAD + b"0,0,0,1.5\n", "line 2: '1.5' is not a whole number"),
    (".csv", HEAD + b"0,0,0,\x1b[2J\n", "'?[2J' is not a whole number"),
    (".csv", HEAD + b"0,0,0," + b"9" * 19 + b"\n", "is not a whole number"), (".csv", HEAD + b"0,0,0,-4\n", "row 1: tokens -4 is negative"),
    (".csv", HEAD + b"0,0,0,4000000000\n", "row 1: tokens 4000000000 exceeds"),
    (".csv", HEAD + b"0,0,0,1\n0,0,0,1\n", "has step 0, layer 0, expert 0 twice"),
    (".csv", HEAD + b"0,0,0,1\n2,0,0,1\n", "step 1 is missing, but step 2 exists"),
    (".csv", HEAD + b"0,0,0,1\n0,0,2,1\n", "expert 1 is missing"),
    (".csv", HEAD + b"0,0,0,1\n0,0,1,1\n1,0,0,1\n", "step 1, layer 0, expert 1 is missing"),
    (".csv", HEAD + b"0,0,1,1\n", "expert 0 is missing"),
    (".csv", HEAD + b"0,0,0,1\n999999999,999999999,999999999,1\n", "step 1 is missing"),
    (".csv", b"\xff\xfe\x00", "is not text"), (".csv", HEAD + b'0,0,0,"' + b"1" * 200_000, "is not valid CSV"),
    (".npz", b"PK", "is not a valid NPZ file"), (".npz", npz_of(COUNTS)[:-30], "is not a valid NPZ file"),
    (".npz", npz_of(COUNTS[0]), "has the shape [3, 4]"), (".npz", npz_of(COUNTS[:0]), "has the shape [0, 3, 4]"),
    (".npz", npz_of(-COUNTS), "tokens[0, 0, 0] = -1 is negative"), (".npz", npz_of(COUNTS * 1.0), "has the type float64"),
    (".npz", npz_of(np.array([[[{}]]])), "has the type object"), (".parquet", b"PAR1", "is not valid Parquet"),
]  # fmt: skip


@pytest.mark.parametrize(("suffix", "content", "why"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_bad_file_is_one_sentence_with_a_remedy(suffix, content, why, tmp_path):
    with pytest.raises(UsageError) as raised:
        read_counts(written(tmp_path, content, suffix))
    text = str(raised.value)
    assert why in text and text.isprintable() and ": " in text and "tokens" + suffix in text


def test_bad_parquet_and_a_zip_bomb_are_rejected(tmp_path):
    for content, why in (
        (parquet_of(COUNTS, tokens=COUNTS.ravel() * 1.0), "has the type double"),
        (parquet_of(COUNTS, tokens=[None, *COUNTS.ravel()[1:].tolist()]), "missing values"),
        (parquet_of(COUNTS, tokens=np.full(24, 2**63, np.uint64)), "above"),
        (parquet_of(COUNTS)[:-6], "is not valid Parquet"),
    ):
        with pytest.raises(UsageError, match=why):
            read_counts(written(tmp_path, content, ".parquet"))
    path = tmp_path / "tokens.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("tokens.npy", "w") as member:
        for _ in range(17):
            member.write(b"\0" * 2**23)
    assert path.stat().st_size < 2**20
    with pytest.raises(UsageError, match="more than"):
        read_counts(path)


def npy_with(header, data=b"\0" * 8):
    padded = header.encode() + b" " * (64 - (len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + data


@pytest.mark.parametrize("member", [
    npy_with("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000, 1000000, 1000000), }"),
    npy_with("{'descr': '<i8', 'fortran_order': False, 'shape': (-1, 1, -1), }"),
    npy_with("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 1), }", b"cos\nsystem\n(S'true'\ntR."),
    npy_with("{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1, 1), 'x': " + "[" * 5000),
    npy_with("{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (1, 1, 1), }"),
    b"\x93NUMPY\x03\x00", b"",
])  # fmt: skip
def test_hostile_headers_and_pickles_in_an_npz_are_rejected_before_their_size_is_used(member, tmp_path):
    path = tmp_path / "tokens.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tokens.npy", member)
    with pytest.raises(UsageError, match=r"tokens\.npz"):
        read_counts(path)


@pytest.mark.parametrize("suffix", WRITERS)
def test_damaged_files_are_read_or_rejected_and_nothing_else(suffix, tmp_path):
    whole, path, rng = WRITERS[suffix](RANKED), tmp_path / f"tokens{suffix}", np.random.default_rng(11)
    outcomes = set()
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(rng.integers(1, 6)):
            damaged[rng.integers(len(damaged))] = rng.integers(256)
        path.write_bytes(damaged[: rng.integers(1, len(damaged) + 1)] if rng.random() < 0.3 else damaged)
        try:
            found = read_counts(path)
        except UsageError as error:
            assert str(error).isprintable() and path.name in str(error)
            outcomes.add("rejected")
        else:
            assert found.tokens.ndim == 4 and found.tokens.min() >= 0 and len(found.steps) == len(found.tokens)
            outcomes.add("read")
    assert "rejected" in outcomes


@pytest.mark.parametrize(("typed", "why"), [
    ({"routing": "zipf:x"}, "'x' is not an exponent"), ({"routing": "zipf:"}, "'' is not an exponent"),
    ({"routing": "zip:1"}, "'zip:1' is not a valid routing"), ({"routing": "zipf:1,hot=2"}, "zipf has no option 'hot': it has none"),
    ({"routing": "drift:1.5"}, "must be between 0 and 1"), ({"routing": "drift:0.5,hot=0"}, "hot must be a whole number"),
    ({"routing": "drift:0.5,hot=8"}, "less than the number of experts, 8"),
    ({"routing": "drift:0.9,hot=1"}, "cannot get 90 % of the copies"), ({"routing": "drift:0.5,hot=1,hot=2"}, "has an option twice"),
    ({"routing": "drift:0.5,speed=2"}, "no option 'speed': choose from hot, every"),
    ({"routing": "groups:3"}, "8 experts cannot be divided into 3 equal groups"),
    ({"routing": "groups:8,limit=1"}, "limit=1 must be 2 to 8"), ({"routing": "groups:0"}, "must be a whole number from 1 on"),
    ({"routing": "zipf:1", "imbalance": "2"}, "exclude each other"), ({"routings": "2"}, "needs --routing"),
    ({"routing": "zipf:1", "routings": "1001"}, "use 1 to 1000"),
    ({"routing": "zipf:1", "experts": "10"}, "cannot be shared evenly by 4 ranks"),
    ({"routing": "zipf:1", "top_k": "9"}, "exceeds the number of experts"), ({"routing": "zipf:1", "experts": "8192"}, "at most 4,096"),
    ({"routing": "zipf:1", "layers": "100000", "routings": "1000"}, "need too much memory: use --routings 20"),
    ({"routing": "no-such-file.npz"}, "cannot be read (No such file or directory)"),
    ({"dispatch_dtype": "int8"}, "--dispatch-dtype int8 is not supported for training"),
    ({"combine_dtype": "float7"}, "--combine-dtype: dtype 'float7' is unknown"),
])  # fmt: skip
def test_a_bad_request_is_one_sentence(typed, why):
    with pytest.raises(UsageError) as raised:
        laid_out(typed)
    assert why in str(raised.value) and str(raised.value).isprintable() and ":" in str(raised.value)


@pytest.mark.parametrize(("tokens", "typed", "why"), [
    (np.full((1, 1, 6), 1), {"experts": ""}, "has 6 experts, which 4 ranks cannot share evenly"),
    (np.full((1, 1, 8), 1), {"experts": "4"}, "--experts 4, but routing file"),
    (np.full((1, 1, 2, 8), 1), {}, "has the tokens of 2 ranks, and this launch has 4"),
    (np.full((1, 1, 8), 4 * 64), {}, "rank 0 sends 512 copies of tokens, more than 128"),
    (np.array([[[300] + [0] * 7]]), {}, "expert 0 gets 75 tokens of rank 0, more than 64"),
    (np.stack([np.ones((1, 8), int), np.zeros((1, 8), int)]), {}, "step 1, layer 0 has no tokens"),
])  # fmt: skip
def test_counts_that_the_tokens_cannot_have_are_rejected(tokens, typed, why, tmp_path):
    path = written(tmp_path, npz_of(tokens), ".npz")
    with pytest.raises(UsageError) as raised:
        laid_out({"routing": str(path), **typed})
    assert why in str(raised.value)


def test_a_changed_file_is_read_again(tmp_path):
    path = written(tmp_path, csv_of(COUNTS[:, :, :4]))
    first = laid_out({"routing": str(path), "experts": ""}).routing
    path.write_bytes(csv_of(COUNTS[:1, :, :4] + 2))
    assert len(first.steps) == 2 and len(laid_out({"routing": str(path), "experts": ""}).routing.steps) == 1
