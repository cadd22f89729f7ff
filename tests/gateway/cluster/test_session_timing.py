"""The times of sessions and leases fit together."""

from __future__ import annotations

import pytest

from gateway.cluster.session_timing import SessionTiming


@pytest.mark.parametrize("session_timeout", [0.5, 3.0, 60.0])
def test_lease_of_a_former_controller_ends_before_a_new_session_with_clocks_7_percent_off(
    session_timeout,
):
    timing = SessionTiming.of(session_timeout)
    assert (timing.role_lease + timing.lease) / 0.93 < timing.session_timeout / 1.07
