"""Making folds: what is given is taken as it is, and a twin knows what its original knows now."""

from __future__ import annotations

from ontrack.pipeline.cli.references import _profile
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.encoding.encoders import CachedEncoder, HashingEncoder
from ontrack.pipeline.folding.shelves import Items
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references
from ontrack.topics.events import Proposal
from ontrack.topics.knowledge import Switch, ToolContract

SETTINGS = Settings(encoder="hashing")


def test_an_encoder_that_is_given_is_the_one_even_with_an_empty_cache() -> None:
    given = CachedEncoder(HashingEncoder(64))
    fold = make_fold(Settings(encoder="wordllama"), given)
    assert fold.encoder is given
    assert fold.profile.digest(fold.encoder.name, "") == fold.profile.digest(given.name, "")


def test_a_twin_knows_what_was_declared_later_and_shares_the_encoder() -> None:
    monitor = EmbeddedMonitor(SETTINGS, references())
    pay = ToolContract(name="pay", effect="destructive", consumes=("args.order",))
    monitor.fold.library.add_contract(pay.name, pay)
    monitor.fold.library.add_switch("agent:bob", Switch(scope="agent", name="bob"))
    twin = monitor.twin()
    assert twin.encoder is monitor.fold.encoder
    assert twin.library.current() == monitor.fold.library.current()
    question = Proposal(run_id="r", tool="pay", args={"order": "ord-12345"})
    decisions = [fold.propose(fold.partition(), question).decision for fold in (monitor.fold, twin)]
    assert decisions == ["block", "block"]
    assert twin.library.switchings == 1


def test_what_is_redacted_once_is_not_redacted_again_in_a_twin() -> None:
    settings = Settings(encoder="hashing", redact=("args",))
    monitor = EmbeddedMonitor(settings, references())
    assert monitor.twin().library.current() == monitor.fold.library.current()
    assert monitor.fold.library.current().references != references()


def test_what_is_pinned_stands_whatever_is_published_under_its_name() -> None:
    contract, *_ = contracts()
    pinned = Items(contracts=(contract,))
    library = make_fold(SETTINGS, pinned=pinned).library
    library.add_contract(contract.name, None, 1)
    library.add_contract(contract.name, ToolContract(name=contract.name), 2)
    library.add_contract("other", ToolContract(name="other"), 3)
    assert library.contracts_now() == {
        contract.name: contract,
        "other": ToolContract(name="other"),
    }


def test_reference_sets_are_tested_under_the_settings_that_a_worker_has() -> None:
    profile, _ = _profile(Settings(encoder="hashing", operators={"references_max": 3}))
    assert profile.references_max == 3
    paper, _ = _profile(Settings(encoder="hashing", profile="paper"))
    assert paper.selftest is not None
