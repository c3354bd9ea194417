"""Making folds: one place that turns settings into a profile, an encoder and a fold."""

from __future__ import annotations

from dataclasses import replace

from ontrack.operators.overrides import override
from ontrack.operators.profiles import Profile, make_profile
from ontrack.pipeline.calibrated import warn_of_mismatch
from ontrack.pipeline.encoding.encoders import CachedEncoder, Encoder, make_encoder
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.library import Library
from ontrack.pipeline.folding.shelves import Items
from ontrack.pipeline.settings import Settings
from ontrack.solver import kernels
from ontrack.topics.errors import InvalidSettings


def profile_of(settings: Settings, encoder_name: str) -> Profile:
    """Return the profile that the settings name, with their changes to it.

    Raises
    ------
    InvalidSettings
        A change names no setting of an operator, or its value is not possible there.
    UnknownName
        There is no such profile.
    """
    profile = make_profile(settings.profile, encoder_name)
    changed = override(profile, settings.operators)
    return replace(changed, show_arguments=settings.show_arguments)


def encoder_of(settings: Settings, encoder: Encoder | None = None) -> CachedEncoder:
    """Return the settings' encoder, or the one given, with a cache; one that has a cache as it is.

    Raises
    ------
    InvalidSettings
        It is not installed.
    UnknownName
        There is no such encoder.
    """
    if isinstance(encoder, CachedEncoder):
        return encoder
    made = make_encoder(settings.encoder) if encoder is None else encoder
    return CachedEncoder(made, settings.encoder_cache_entries)


def make_fold(
    settings: Settings,
    encoder: Encoder | None = None,
    pinned: Items = Items(),  # noqa: B008
) -> Fold:
    """Build the fold that the settings describe.

    Parameters
    ----------
    encoder
        In place of the one that the settings name.
    pinned
        In its library, whatever is published under these names.

    Raises
    ------
    InvalidSettings
        The kernel numba was asked for and is not installed, or an encoder, a profile or a change
        to it is not possible.
    """
    use_kernel(settings)
    cached = encoder_of(settings, encoder)
    profile = profile_of(settings, cached.name)
    warn_of_mismatch(settings.calibration, cached.name, profile.name)
    redaction = settings.redaction
    return Fold(
        profile,
        cached,
        Library(profile, cached, redaction=redaction, pinned=pinned),
        settings.limits,
        settings.ended_runs_max,
        settings.intervene,
        settings.warm_runs_max,
        redaction,
    )


def use_kernel(settings: Settings) -> None:
    """Put the solver's kernel in force for this process; compiled and called before any event.

    Raises
    ------
    InvalidSettings
        numba was asked for and is not installed.
    """
    try:
        kernels.use(settings.kernel)
    except ValueError as error:
        raise InvalidSettings(f"kernel: {error}") from error
