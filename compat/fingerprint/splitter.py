"""Splits the connections of one application into the clients that opened them.

Applications that share an address and a client id look like one application. Two connections belong
to the same client if one version of one library explains both; otherwise they belong to two
clients.

A connection shows only part of its client's behaviour, so only request versions are compared.
Times, sizes and the order of requests depend on the application and never split anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from compat.fingerprint.behaviour import API_VERSIONS, SASL_REQUESTS, Behaviour
from compat.fingerprint.matcher import VersionFit, version_fits
from compat.fingerprint.table import ClientLibrary, LibraryTable, VersionProfile, version_numbers

NOT_COMPARED = frozenset({API_VERSIONS, *SASL_REQUESTS})
"""Requests whose version depends on the listener or on an earlier rejection."""


@dataclass(frozen=True, slots=True)
class NamedClient:
    """A client that sends its name, with the requests of all its connections."""

    library: str
    version: str | None
    requests: Mapping[int, frozenset[int]]


@dataclass(frozen=True, slots=True)
class InferredClient:
    """A client found by splitting.

    `connections` are indexes of connections without a name. `named` is the index of the client that
    sends its name on other connections, or None.
    """

    named: int | None
    connections: tuple[int, ...]


MAX_CACHED_EXPLANATIONS = 10_000
"""Cached explanations, by kind of connection; applications with the same library share them."""

FitKey = tuple[str, int]
"""A library and the index of one of its version fits."""
LowerVersions = Mapping[int, frozenset[int]]
"""By api key, versions that a client also sends besides a higher one."""


class _SentVersions:
    """The versions that a set of connections sent, by api key."""

    def __init__(self, first: Behaviour | None = None) -> None:
        self._versions: dict[int, set[int]] = {}
        if first is not None:
            self.add(first)

    def add(self, behaviour: Behaviour) -> None:
        for key, version in behaviour.highest.items():
            self._versions.setdefault(key, set()).add(version)

    def agrees(self, behaviour: Behaviour, lower: LowerVersions) -> bool:
        """Whether each request has the same version in both, or the lower version is sent besides a
        higher one.
        """
        for key, own in behaviour.highest.items():
            for version in self._versions.get(key, ()) if key not in NOT_COMPARED else ():
                if own != version and min(own, version) not in lower.get(key, ()):
                    return False
        return True


class Splitter:
    def __init__(self, table: LibraryTable) -> None:
        self._table = table
        self._libraries = {library.name: library for library in table.libraries}
        self._lower: dict[FitKey, LowerVersions] = {}
        self._recorded: set[FitKey] = set()
        for library in table.libraries:
            for index, fit in enumerate(version_fits(Behaviour({}), library)):
                self._lower[library.name, index] = _lower_versions(fit.profiles)
                if fit.is_recorded:
                    self._recorded.add((library.name, index))
        self._any_lower = _lower_versions(
            profile for library in table.libraries for profile in library.profiles
        )
        self._explained = lru_cache(MAX_CACHED_EXPLANATIONS)(self._explain)

    def split(
        self,
        connections: Sequence[Behaviour],
        named: Sequence[NamedClient] = (),
        client_id_library: str | None = None,
    ) -> list[InferredClient]:
        """Split `connections` (those without a name) into clients; clients with a name come first.

        `client_id_library` is the library whose default client id the connections use. A connection
        that several clients explain is assigned to a named client if possible, otherwise to the
        client that explains most connections.
        """
        explained = [
            self._explained(tuple(sorted(one.requests.items())), one.openings, client_id_library)
            for one in connections
        ]
        # Connections with the most request types come first.
        left = sorted(
            range(len(connections)), key=lambda index: (-len(connections[index].requests), index)
        )
        clients: list[tuple[int | None, list[int], _SentVersions]] = []
        for number, one in enumerate(named):
            sent = _SentVersions(Behaviour(one.requests, is_complete=False))
            taken = self._of_named(self._places_of(one), left, connections, explained, sent)
            clients.append((number, taken, sent))
            left = [index for index in left if index not in taken]
        while taken := self._most_explained(left, connections, explained):
            sent = _SentVersions()
            for index in taken:
                sent.add(connections[index])
            clients.append((None, taken, sent))
            left = [index for index in left if index not in taken]
        for index in left:
            self._add_unexplained(index, connections[index], clients)
        return [InferredClient(number, tuple(sorted(taken))) for number, taken, _ in clients]

    def _of_named(
        self,
        its_places: frozenset[FitKey],
        left: Sequence[int],
        connections: Sequence[Behaviour],
        explained: Sequence[frozenset[FitKey]],
        sent: _SentVersions,
    ) -> list[int]:
        """The connections explained by one of `its_places`.

        For a library that is not in the table: the connections that do not contradict the client.
        """
        taken = []
        for index in left:
            possible = (
                [self._lower[place] for place in its_places & explained[index]]
                if its_places
                else [self._any_lower]
            )
            if any(sent.agrees(connections[index], lower) for lower in possible):
                taken.append(index)
                sent.add(connections[index])
        return taken

    def _most_explained(
        self,
        left: Sequence[int],
        connections: Sequence[Behaviour],
        explained: Sequence[frozenset[FitKey]],
    ) -> list[int]:
        """The largest set of connections that one fit explains; a recorded version wins a tie."""
        best: list[int] = []
        best_order = (0, False)
        for place in sorted({place for index in left for place in explained[index]}):
            sent, taken = _SentVersions(), []
            for index in left:
                if place in explained[index] and sent.agrees(
                    connections[index], self._lower[place]
                ):
                    taken.append(index)
                    sent.add(connections[index])
            order = (len(taken), place in self._recorded)
            if order > best_order:
                best, best_order = taken, order
        return best

    def _add_unexplained(
        self,
        index: int,
        behaviour: Behaviour,
        clients: list[tuple[int | None, list[int], _SentVersions]],
    ) -> None:
        """Assign a connection that no recorded version explains to a client it does not
        contradict.
        """
        for _, taken, sent in clients:
            if sent.agrees(behaviour, self._any_lower):
                taken.append(index)
                sent.add(behaviour)
                return
        clients.append((None, [index], _SentVersions(behaviour)))

    def _explain(
        self,
        requests: tuple[tuple[int, frozenset[int]], ...],
        openings: frozenset[tuple[int, ...]],
        client_id_library: str | None,
    ) -> frozenset[FitKey]:
        """The fits that nothing in the connection contradicts.

        If the connection uses a library's default client id, only that library's fits are kept, if
        any.
        """
        behaviour = Behaviour(dict(requests), openings, is_complete=False)
        found = frozenset(
            (library.name, index)
            for library in self._table.libraries
            for index, fit in enumerate(version_fits(behaviour, library))
            if not fit.contradictions and not _lacks_api_versions(behaviour, fit)
        )
        return frozenset(place for place in found if place[0] == client_id_library) or found

    def _places_of(self, named: NamedClient) -> frozenset[FitKey]:
        library = self._libraries.get(named.library)
        if library is None or named.version is None:
            return frozenset()
        own = version_numbers(named.version)
        return frozenset(
            (library.name, index)
            for index, fit in enumerate(version_fits(Behaviour({}), library))
            if _release(library, fit.low) <= own
            and (fit.high is None or own <= _release(library, fit.high))
        )


def _release(library: ClientLibrary, index: int) -> tuple[int, ...]:
    return version_numbers(library.releases[min(index, len(library.releases) - 1)])


def _lower_versions(profiles: Iterable[VersionProfile]) -> LowerVersions:
    found: dict[int, frozenset[int]] = {}
    for profile in profiles:
        for key, versions in profile.behaviour.requests.items():
            found[key] = found.get(key, frozenset()) | (versions - {max(versions)})
    return found


def _lacks_api_versions(behaviour: Behaviour, fit: VersionFit) -> bool:
    """Whether the connection started without ApiVersions although all of these versions start with
    it.
    """
    begun = [opening for opening in behaviour.openings if opening]
    if not begun or any(opening[0] == API_VERSIONS for opening in begun):
        return False
    return bool(fit.profiles) and all(
        _starts_with_api_versions(profile) for profile in fit.profiles
    )


def _starts_with_api_versions(profile: VersionProfile) -> bool:
    return bool(profile.behaviour.openings) and all(
        one[:1] == (API_VERSIONS,) for one in profile.behaviour.openings
    )
