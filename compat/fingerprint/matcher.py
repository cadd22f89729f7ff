"""Identifies a client's library and its possible versions from its behaviour.

Library and version are determined separately. The library is the one with the best total score over
all evidence: habits are configurable, so none of them decides alone, and a combination that no
recorded version has counts less. Versions are determined by request versions only. Within a library
the highest version of a request only grows, so a release that sent a lower version than observed is
too old, and one that would have sent a higher version is too new.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compat.fingerprint.behaviour import API_VERSIONS, NOT_SENT, Behaviour
from compat.fingerprint.table import ClientLibrary, LibraryTable, VersionProfile

CONTRADICTION_COST = 4.0
"""Cost of a request version that contradicts a library."""
UNRECORDED_COST = 0.25
"""Cost of a request version that no recorded version sent, but that lies between two that were."""
FOREIGN_REQUEST_COST = 1.5
"""Cost of a request that the library was never seen to send."""
HABIT_WEIGHT, OPENING_WEIGHT, CLIENT_ID_WEIGHT = 4.0, 1.0, 5.0
"""Maximum score of a habit value, of an opening and of a client id that only this library has."""
UNSEEN_HABIT_COST, UNSEEN_OPENING_COST = 1.0, 3.0
"""Cost of a habit value or an opening never seen from the library. Applications configure habits,
not openings.
"""
OTHER_VERSION_COST = 1.5
"""Cost of a value or opening that the library has, but not in the versions that the requests
suggest.
"""
UNKNOWN_LIBRARY_COST = 5.0
"""Cost of the hypothesis "a library that is not in the table". A library that costs more is not
named.
"""
MIN_SHARE = 0.7
"""Share of all scores that a library needs to be named."""
MAX_CONFIDENCE = 0.99
"""Highest confidence of a conclusion; 1 is reserved for clients that send their name."""
MIN_CANDIDATE_SHARE = 0.05
"""Share of all scores that makes a library a candidate."""

RECORDED_PREFIX = "as "
"""Prefix of the evidence for a recorded version that behaves the same."""

#: Requests that libraries send on their own; others depend on the application.
AUTOMATIC_REQUESTS = frozenset({0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 17, 18, 22, 36})


@dataclass(frozen=True, slots=True)
class Identification:
    """The result for one client.

    `library` is None if it cannot be determined; `candidates` are the possible libraries, most
    likely first. `version_low` and `version_high` are releases, both inclusive; `version_high` is
    None if newer releases than the known ones are possible. `confidence` is 0 to 1.
    """

    library: str | None
    candidates: tuple[str, ...]
    version_low: str | None
    version_high: str | None
    confidence: float
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VersionFit:
    """How well a position in a library's version history explains the requests.

    A position is a recorded version, a gap next to one, or "configured" (an older protocol is set).
    """

    low: int
    """Index in the releases."""
    high: int | None
    contradictions: int
    unrecorded: int
    reason: str
    profiles: tuple[VersionProfile, ...]
    """The recordings that this fit is based on."""

    @property
    def is_recorded(self) -> bool:
        """Whether this is a recorded version rather than a gap next to one."""
        return self.low == self.high and self.reason.startswith(RECORDED_PREFIX)

    @property
    def cost(self) -> float:
        return CONTRADICTION_COST * self.contradictions + UNRECORDED_COST * self.unrecorded


def identify(behaviour: Behaviour, table: LibraryTable) -> Identification:
    fits = {library.name: version_fits(behaviour, library) for library in table.libraries}
    weighed = {
        library.name: _score(behaviour, library, fits[library.name], table.libraries)
        for library in table.libraries
    }
    scores = {name: support - costs for name, (support, costs) in weighed.items()}
    # An unrecorded library is assumed to fit as well as the best recorded one.
    support, _ = max(weighed.values(), key=lambda pair: pair[0] - pair[1], default=(0.0, 0.0))
    ranked = sorted(
        zip(scores, _shares([*scores.values(), support - UNKNOWN_LIBRARY_COST]), strict=False),
        key=lambda pair: -pair[1],
    )
    candidates = tuple(name for name, share in ranked if share >= MIN_CANDIDATE_SHARE)
    if not ranked or ranked[0][1] < MIN_SHARE:
        return Identification(None, candidates, None, None, 0.0, _candidates_text(candidates))
    name, share = ranked[0]
    library = next(library for library in table.libraries if library.name == name)
    low, high = _range(fits[name], library)
    return Identification(
        name,
        candidates,
        low,
        high,
        round(min(share, MAX_CONFIDENCE), 2),
        _evidence(behaviour, library, fits[name]),
    )


def version_fits(behaviour: Behaviour, library: ClientLibrary) -> list[VersionFit]:
    """Return a fit for each position, in the same order for every behaviour; the configured fit
    comes last.
    """
    highest = behaviour.highest
    releases = {version: place for place, version in enumerate(library.releases)}
    fits = []
    for before, after in zip((None, *library.by_version), (*library.by_version, None), strict=True):
        fits.append(_gap_fit(behaviour, before, after, releases))
        if after is not None:
            wrong = _too_old(highest, after) | _too_new(behaviour, after)
            place = releases[after.version]
            fits.append(
                VersionFit(
                    place,
                    place,
                    len(wrong),
                    0,
                    f"{RECORDED_PREFIX}{library.name} {after.version}",
                    (after,),
                )
            )
    if library.protocol_config == "always" or (
        library.protocol_config == "unasked" and highest.get(API_VERSIONS, NOT_SENT) == NOT_SENT
    ):
        fits.append(_configured_fit(behaviour, library, releases))
    return fits


def _gap_fit(
    behaviour: Behaviour,
    before: VersionProfile | None,
    after: VersionProfile | None,
    releases: dict[str, int],
) -> VersionFit:
    """Fit of the versions after `before` and before `after`, whose requests lie between the two."""
    highest = behaviour.highest
    wrong: set[int] = set()
    between: set[int] = set()
    if before is not None:
        wrong |= _too_new(behaviour, before)
        between |= _too_old(highest, before)
    if after is not None:
        wrong |= _too_old(highest, after)
        between = (
            (between & _too_new(behaviour, after))
            if before is not None
            else _too_new(behaviour, after)
        )
    if before is not None and after is not None:
        # If one neighbour is known to send this version, the versions in the gap may send it too.
        wrong = {
            key
            for key in wrong
            if not any(
                highest[key] in one.behaviour.requests.get(key, ()) for one in (before, after)
            )
        }
    low = 0 if before is None else releases[before.version] + 1
    high = None if after is None else releases[after.version] - 1
    reason = (
        f"{'older than' if before is None else 'after'} "
        f"{(before or after or _EMPTY_PROFILE).version}"
    )
    if before is not None and after is not None:
        reason += f" and before {after.version}"
    return VersionFit(
        low,
        high,
        len(wrong),
        len(between - wrong),
        reason,
        tuple(one for one in (before, after) if one is not None),
    )


def _configured_fit(
    behaviour: Behaviour, library: ClientLibrary, releases: dict[str, int]
) -> VersionFit:
    """Fit of a client configured to speak an older protocol: only unconfigurable requests limit its
    version.
    """
    highest = {key: version for key, version in behaviour.highest.items() if key != API_VERSIONS}
    wrong = min((len(_too_old(highest, profile)) for profile in library.profiles), default=0)
    unseen = min(
        (
            len(_too_old(highest, profile) | _too_new(behaviour, profile))
            for profile in library.configured
        ),
        default=len(highest),
    )
    low, high = 0, None
    if library.protocol_config == "unasked":
        # Without that setting it uses what the broker offers, so the recordings show its maximum.
        too_old = [profile for profile in library.by_version if _too_old(highest, profile)]
        low = min(releases[too_old[-1].version] + 1, len(releases) - 1) if too_old else 0
    else:
        high = _last_release_without_api_versions(behaviour, library, releases)
    reason = f"{library.name} configured for an older protocol"
    return VersionFit(low, high, wrong, unseen, reason, library.configured or library.profiles)


def _last_release_without_api_versions(
    behaviour: Behaviour, library: ClientLibrary, releases: dict[str, int]
) -> int | None:
    """The release before the first from which every recording, however configured, sends
    ApiVersions.

    None if the client sent ApiVersions.
    """
    if behaviour.highest.get(API_VERSIONS, NOT_SENT) != NOT_SENT:
        return None
    silent = [
        profile.version for profile in library.profiles if profile.highest[API_VERSIONS] == NOT_SENT
    ]
    asking = [
        place
        for profile in library.by_version
        if (place := releases[profile.version]) > max((releases[one] for one in silent), default=-1)
    ]
    return min(asking) - 1 if asking and silent else None


_EMPTY_PROFILE = VersionProfile("0", Behaviour({}))


def _too_old(highest: dict[int, int], profile: VersionProfile) -> set[int]:
    """Requests whose observed version is higher than the highest of `profile`."""
    own = profile.highest
    return {key for key, version in highest.items() if key in own and version > own[key]}


def _too_new(behaviour: Behaviour, profile: VersionProfile) -> set[int]:
    """Requests whose observed version is lower than the highest of `profile` and never sent by
    it.
    """
    own, sent = profile.highest, profile.behaviour.requests
    return {
        key
        for key, version in behaviour.highest.items()
        if key in own and version < own[key] and version not in sent.get(key, ())
    }


def _score(
    behaviour: Behaviour,
    library: ClientLibrary,
    fits: Sequence[VersionFit],
    others: Sequence[ClientLibrary],
) -> tuple[float, float]:
    """Return (supporting score, cost)."""
    support, costs = (
        0.0,
        min(
            fit.cost + OTHER_VERSION_COST * _outside_fit(behaviour, library, fit.profiles)
            for fit in fits
        ),
    )
    costs += FOREIGN_REQUEST_COST * len(
        (behaviour.requests.keys() & AUTOMATIC_REQUESTS) - library.requests
    )
    for name, values in behaviour.habits.items():
        if values <= library.habits.get(name, frozenset()):
            support += HABIT_WEIGHT * _rarity(
                sum(values <= other.habits.get(name, frozenset()) for other in others), len(others)
            )
        else:
            costs += UNSEEN_HABIT_COST
    for first in behaviour.openings:
        if first in library.openings:
            support += (
                OPENING_WEIGHT
                * _rarity(sum(first in other.openings for other in others), len(others))
                / len(behaviour.openings)
            )
        else:
            costs += UNSEEN_OPENING_COST
    if behaviour.client_id_library == library.name:
        costs = max(costs - CLIENT_ID_WEIGHT, 0.0)
    elif behaviour.client_id_library is not None:
        costs += CLIENT_ID_WEIGHT
    return support, costs


def _outside_fit(
    behaviour: Behaviour, library: ClientLibrary, profiles: Sequence[VersionProfile]
) -> float:
    """Count habits and openings that the library has, but not in `profiles`. All openings count as
    one habit.
    """
    found = 0.0
    for name, values in behaviour.habits.items():
        if values <= library.habits.get(name, frozenset()):
            found += not all(
                any(value in one.behaviour.habits.get(name, ()) for one in profiles)
                for value in values
            )
    for first in behaviour.openings & library.openings:
        found += (not any(first in one.behaviour.openings for one in profiles)) / len(
            behaviour.openings
        )
    return found


def _rarity(knowing: int, of: int) -> float:
    """From 0 (all libraries have it) to 1 (only one has it)."""
    return math.log(of / knowing) / math.log(of) if of > 1 else 1.0


def _shares(scores: Iterable[float]) -> list[float]:
    each = [math.exp(score) for score in scores]
    return [one / sum(each) for one in each]


def _range(fits: Sequence[VersionFit], library: ClientLibrary) -> tuple[str | None, str | None]:
    """Version range covered by all fits with the fewest contradictions."""
    least = min(fit.contradictions for fit in fits)
    fitting = [
        fit
        for fit in fits
        if fit.contradictions == least and (fit.high is None or fit.low <= fit.high)
    ]
    low = min(fit.low for fit in fitting)
    is_open = any(fit.high is None for fit in fitting)
    high = None if is_open else max(fit.high for fit in fitting if fit.high is not None)
    return library.releases[
        min(low, len(library.releases) - 1)
    ], None if high is None else library.releases[high]


def _evidence(
    behaviour: Behaviour, library: ClientLibrary, fits: Sequence[VersionFit]
) -> tuple[str, ...]:
    # A recorded version is better evidence than a gap.
    best = min(fits, key=lambda fit: (fit.cost, fit.low != fit.high))
    found = [f"requests {best.reason}"]
    own = sorted(
        f"{name} {','.join(sorted(values))}"
        for name, values in behaviour.habits.items()
        if values <= library.habits.get(name, frozenset())
    )
    if own:
        found.append("habits: " + ", ".join(own))
    if behaviour.openings & library.openings:
        found.append("connections start with the same requests")
    if behaviour.client_id_library == library.name:
        found.append("default client id of the library")
    return tuple(found)


def _candidates_text(candidates: Sequence[str]) -> tuple[str, ...]:
    if not candidates:
        return ("matches no known library",)
    return (
        ("may be " + " or ".join(candidates),)
        if len(candidates) > 1
        else (f"possibly {candidates[0]}",)
    )
