"""What comes in is data and never code; secrets are compared in constant time."""

from __future__ import annotations

import ast
import hmac
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from ontrack.operators import snapshot
from ontrack.pipeline import web as shared
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.kafka import web as pages
from ontrack.pipeline.kafka.app import make_app
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import InvalidSnapshot
from ontrack.topics.verdicts import DeadLetter

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for name in ("solver", "topics", "operators", "pipeline")
    for path in ROOT.glob(f"{name}/**/*.py")
)
RUNS_CODE = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve", "joblib", "marshal"}
RUNS_CODE |= {"jsonpickle", "copyreg"}
SECRETS = ("token", "secret", "password", "authorization")


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            yield path.relative_to(ROOT), node


def test_no_module_of_ours_imports_what_runs_code_from_data() -> None:
    assert len(SOURCES) > 80
    found = []
    for path, node in nodes():
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [(str(path), name) for name in names if name.split(".")[0] in RUNS_CODE]
    assert found == []


def test_nothing_is_evaluated_and_no_array_is_unpickled() -> None:
    found = []
    for path, node in nodes():
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        is_code = called in ("eval", "exec", "compile", "yaml.load", "np.load", "numpy.load")
        allows = any(
            keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False"
            for keyword in node.keywords
        )
        if is_code or allows:
            found.append((str(path), ast.unparse(node)[:80]))
    assert found == []


def test_faust_hands_over_bytes_as_they_are(tmp_path: Path) -> None:
    app = make_app(Settings(data_dir=str(tmp_path), encoder="hashing"))
    assert len(app.agents) == 2
    for agent in app.agents.values():
        topic = agent.channel
        assert (topic.key_serializer, topic.value_serializer) == ("raw", "raw")
        assert (topic.key_type, topic.value_type) == (bytes, bytes)
    assert not app.tables.data, "a table's changelog would have a serializer of its own"


class Booby:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return sys.modules["builtins"].__dict__["exec"], ("import sys; sys.booby = True",)


def test_pickled_bytes_are_a_dead_letter_and_no_snapshot_and_never_run() -> None:
    raw = pickle.dumps(Booby())
    (letter,) = EmbeddedMonitor(Settings(encoder="hashing")).feed_bytes(raw)
    assert isinstance(letter, DeadLetter)
    assert letter.error.name == "MalformedMessage"
    for sealed in (raw, snapshot.MAGIC + raw):
        with pytest.raises(InvalidSnapshot):
            snapshot.read(sealed)
    assert not hasattr(sys, "booby")
    pickle.loads(raw)  # the trap works
    assert sys.__dict__.pop("booby") is True


def test_no_secret_is_compared_with_an_operator() -> None:
    found = []
    for path, node in nodes():
        if not isinstance(node, ast.Compare):
            continue
        by_value = [
            op for op in node.ops if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn)
        ]
        named = {
            part.id if isinstance(part, ast.Name) else part.attr
            for part in ast.walk(node)
            if isinstance(part, ast.Name | ast.Attribute)
        }
        if by_value and any(secret in name.lower() for name in named for secret in SECRETS):
            found.append((str(path), ast.unparse(node)))
    assert found == []


@pytest.mark.parametrize("given", ["right", "wrong", "righ", "r", "", "\xe4"])
async def test_every_token_goes_through_the_comparison_in_constant_time(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return real(left, right)

    real = hmac.compare_digest
    monkeypatch.setattr(shared.hmac, "compare_digest", compare)

    async def page(_request: web.Request) -> web.Response:
        return web.Response()

    settings = Settings(web_token="right")
    app = web.Application(**pages.web_options(settings))
    app.router.add_get("/metrics", page)
    async with TestClient(TestServer(app)) as client:
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        answer = await client.get("/metrics", headers=headers)
    assert answer.status == (200 if given == "right" else 401)
    assert compared == [(given.encode(), b"right")]
