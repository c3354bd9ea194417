"""Profiles: the settings of every operator, together, under one name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import orjson

from ontrack.operators.abort import AbortParams
from ontrack.operators.artifacts import ArtifactParams
from ontrack.operators.exploration import ExplorationParams
from ontrack.operators.gain import GainParams
from ontrack.operators.gate import GateParams
from ontrack.operators.identity import IdentityParams
from ontrack.operators.ledger import LedgerParams
from ontrack.operators.loop import LoopParams
from ontrack.operators.orphans import OrphanParams
from ontrack.operators.prefix import PrefixParams
from ontrack.operators.ranking import RankParams
from ontrack.operators.repeats import RepeatParams
from ontrack.operators.scoring_plan import ScoringParams
from ontrack.operators.selftest import SelfTestParams
from ontrack.operators.sightings import SightingParams
from ontrack.operators.stall import StallParams
from ontrack.operators.strategy import StrategyParams
from ontrack.operators.transport import ROLE_WEIGHTS, TransportParams
from ontrack.operators.values import ValueParams
from ontrack.solver.problem import SolverParams
from ontrack.topics.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Profile:
    """Settings of the operators, and the limits of one run; None switches an operator off.

    Parameters
    ----------
    references_max
        K: references a run is aligned with.
    reference_steps_max
        Longer references are left out.
    steps_max
        Steps a run; the last one halts it, later ones are refused.
    result_characters_max
        Characters of a result that signals look at.
    reorder_steps_max
        Steps of a run that wait for one that is missing before them; 0: none waits.
    once
        Intervene when a verdict begins, and not at each step that it lasts; nothing after a halt.
    show_arguments
        Texts of verdicts and decisions may quote arguments.
    """

    name: str
    artifacts: ArtifactParams = ArtifactParams()
    ledger: LedgerParams = LedgerParams()
    prefix: PrefixParams = PrefixParams()
    transport: TransportParams = TransportParams()
    loop: LoopParams | None = LoopParams()
    gain: GainParams | None = GainParams()
    stall: StallParams | None = StallParams()
    repeats: RepeatParams | None = None
    ranking: RankParams | None = None
    values: ValueParams = ValueParams()
    sightings: SightingParams = SightingParams()
    identity: IdentityParams | None = None
    orphans: OrphanParams | None = None
    selftest: SelfTestParams | None = None
    scoring: ScoringParams | None = None
    exploration: ExplorationParams | None = ExplorationParams()
    strategy: StrategyParams | None = StrategyParams()
    gate: GateParams = GateParams()
    abort: AbortParams | None = AbortParams()
    references_max: int = 10
    reference_steps_max: int = 128
    steps_max: int = 5000
    result_characters_max: int = 65_536
    reorder_steps_max: int = 32
    once: bool = False
    show_arguments: bool = False

    def digest(self, encoder_name: str, redaction: str = "") -> str:
        """Return twelve hex characters that name these settings with this encoder.

        They stand in every verdict: verdicts with the same digest are comparable, and a
        reprocessed event under the same digest gives the same bytes.

        Parameters
        ----------
        redaction
            Fingerprint of the rules by which events were redacted; empty without rules.
        """
        named = [asdict(self), encoder_name, *([redaction] if redaction else [])]
        plain = orjson.dumps(named, option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(plain).hexdigest()[:12]


# lambda is calibrated per encoder: 2 * lambda + epsilon is the cost above which mass is destroyed
# rather than moved (section 2). The paper gives 0.1 for synthetic embeddings and 0.3 for MiniLM;
# the others were chosen on the simulated workplace, see docs/decisions/0005-lambda-per-encoder.md.
_LAMBDA = {"wordllama": 0.15, "hashing": 0.15, "minilm": 0.3}


def paper(encoder_name: str = "") -> Profile:
    """Return the paper's procedure, as the specification writes it down."""
    lam = _LAMBDA.get(encoder_name.split("-")[0], 0.1)
    return Profile(name="paper", transport=TransportParams(solver=SolverParams(lam=lam)))


def default(encoder_name: str = "") -> Profile:
    """Return what was measured to hold on recorded runs; see docs/detection.md."""
    return replace(
        paper(encoder_name),
        name="default",
        transport=TransportParams(solver=SolverParams(lam=0.1), cost="role", weights=ROLE_WEIGHTS),
        loop=None,
        gain=None,
        stall=None,
        repeats=RepeatParams(),
        ranking=RankParams(),
        identity=IdentityParams(),
        orphans=OrphanParams(),
        selftest=SelfTestParams(),
        scoring=ScoringParams(),
        exploration=None,
        strategy=None,
        abort=None,
        once=True,
    )


_PROFILES: dict[str, Callable[[str], Profile]] = {"default": default, "paper": paper}


def profile_names() -> tuple[str, ...]:
    """Names that :func:`make_profile` knows."""
    return tuple(_PROFILES)


def make_profile(name: str, encoder_name: str) -> Profile:
    """Return a profile by name, calibrated for an encoder.

    Raises
    ------
    UnknownName
        If no such profile exists.
    """
    if name not in _PROFILES:
        known = ", ".join(_PROFILES)
        raise UnknownName(f"no profile {name!r}; known profiles: {known}")
    return _PROFILES[name](encoder_name)
