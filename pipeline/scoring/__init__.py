"""Scoring the path of recorded runs: from Python here, from files in the modules beside."""

from ontrack.pipeline.scoring.api import score_trajectory, unsafe_actions

__all__ = ["score_trajectory", "unsafe_actions"]
