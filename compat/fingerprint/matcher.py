"""From what a client did to its library and the versions that it may be of.

Two questions are kept apart. *Which library*: by everything that was seen, weighed; habits can be configured, so none decides alone, and what goes
together in no recorded version says less. *Which versions* of it: by the versions of requests alone. Along the versions of a library the highest version
of a request only grows, so a version in which it was lower than what was sent is too old, and one that would have sent more is too new; what lies
between is what it may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compat.fingerprint.behaviour import API_VERSIONS, NOT_SENT, Behaviour
from compat.fingerprint.table import ClientLibrary, LibraryTable, VersionProfile

CONTRADICTION_COST = 4.0
"""What it costs that a version of a request speaks against a library."""
UNRECORDED_COST = 0.25
"""What it costs that a version of a request was seen in no recorded version of the library, although it lies between two."""
FOREIGN_REQUEST_COST = 1.5
"""What it costs that a library was never seen to send such a request."""
HABIT_WEIGHT, OPENING_WEIGHT, CLIENT_ID_WEIGHT = 4.0, 1.0, 5.0
"""What speaks for a library, at most: a value that it alone has, a beginning that it alone has, its own client id."""
UNSEEN_HABIT_COST, UNSEEN_OPENING_COST = 1.0, 3.0
"""What it costs that a value or a beginning was never seen of it: applications set the one, and not the other."""
OTHER_VERSION_COST = 1.5
"""What it costs that a value or a beginning was seen of the library, and not of the versions that its requests speak for."""
UNKNOWN_LIBRARY_COST = 5.0
"""What it costs to be a library that is in no table. One that is in it and costs more is not the one."""
MIN_SHARE = 0.7
"""The share of all scores that a library needs to be named."""
MAX_CONFIDENCE = 0.99
"""As sure as a conclusion gets: 1 is for who says it."""
MIN_CANDIDATE_SHARE = 0.05
"""The share with which it is one of those that it may be."""

RECORDED_PREFIX = "as "
"""Evidence begins with it where a recorded version does the same."""

#: Requests that clients send of themselves; others depend on what the application asks for.
AUTOMATIC_REQUESTS = frozenset({0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 17, 18, 22, 36})


@dataclass(frozen=True, slots=True)
class Identification:
    """`library` is None where it cannot be said; `candidates` are those that it may be, likeliest first. `version_low` and `version_high` are releases,
    both possible; `version_high` None is "or newer than any that is known". `confidence` is 0 to 1.
    """

    library: str | None
    candidates: tuple[str, ...]
    version_low: str | None
    version_high: str | None
    confidence: float
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VersionFit:
    """How well a place in the line of a library explains the requests: at a recorded version, in a gap beside one, or configured."""

    low: int
    """Index in the releases."""
    high: int | None
    contradictions: int
    unrecorded: int
    reason: str
    profiles: tuple[VersionProfile, ...]
    """The recordings that it is concluded from."""

    @property
    def is_recorded(self) -> bool:
        """Whether it is a recorded version, and not a gap beside one."""
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
    # A library that nobody has recorded would have as much speaking for it as the best one that somebody has.
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
    """All places in the line, in the same order for each `behaviour`, and last what it may be where it is configured."""
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
    """Versions after `before` and before `after`: they send what lies between the two."""
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
        # What one of the two is known to send, its neighbours may send, too, whichever way the other goes.
        wrong = {
            key
            for key in wrong
            if not any(
                highest[key] in one.behaviour.requests.get(key, ()) for one in (before, after)
            )
        }
    low = 0 if before is None else releases[before.version] + 1
    high = None if after is None else releases[after.version] - 1
    reason = f"{'older than' if before is None else 'after'} {(before or after or _EMPTY_PROFILE).version}"
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
    """A version that was told what to speak, up to the newest that any can: only what cannot be configured bounds it."""
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
        # It takes what the broker offers unless told otherwise, so it goes as far as it can where it was recorded.
        too_old = [profile for profile in library.by_version if _too_old(highest, profile)]
        low = min(releases[too_old[-1].version] + 1, len(releases) - 1) if too_old else 0
    else:
        high = _last_release_without_api_versions(behaviour, library, releases)
    reason = f"{library.name} that is configured to speak an older protocol"
    return VersionFit(low, high, wrong, unseen, reason, library.configured or library.profiles)


def _last_release_without_api_versions(
    behaviour: Behaviour, library: ClientLibrary, releases: dict[str, int]
) -> int | None:
    """The release before the first from which on every recording asks for ApiVersions, however it is configured, where this one did not."""
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
    """Requests in which `profile` goes less far than was seen."""
    own = profile.highest
    return {key for key, version in highest.items() if key in own and version > own[key]}


def _too_new(behaviour: Behaviour, profile: VersionProfile) -> set[int]:
    """Requests in which it goes farther, and never sends what was seen."""
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
    """What speaks for it, and what it costs to believe it."""
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
    """How many habits and beginnings are the library's, and not those of `profiles`; all beginnings together are as much as one habit."""
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
    """From 0, which all have, to 1, which one alone has."""
    return math.log(of / knowing) / math.log(of) if of > 1 else 1.0


def _shares(scores: Iterable[float]) -> list[float]:
    each = [math.exp(score) for score in scores]
    return [one / sum(each) for one in each]


def _range(fits: Sequence[VersionFit], library: ClientLibrary) -> tuple[str | None, str | None]:
    """All places that are contradicted least."""
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
    # A recorded version says more than a gap that it ends.
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
        found.append("connections begin as its do")
    if behaviour.client_id_library == library.name:
        found.append("its own client id")
    return tuple(found)


def _candidates_text(candidates: Sequence[str]) -> tuple[str, ...]:
    if not candidates:
        return ("no library that is known does this",)
    return (
        ("may be " + " or ".join(candidates),)
        if len(candidates) > 1
        else (f"perhaps {candidates[0]}",)
    )
