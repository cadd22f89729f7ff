"""The conditions of `session_timing` hold."""

from __future__ import annotations

import pytest

from gateway.cluster.session_timing import SessionTiming


@pytest.mark.parametrize("session_timeout", [0.5, 3.0, 60.0])
def test_leases_of_a_former_controller_end_before_new_sessions_with_clocks_7_percent_off(
    session_timeout,
):
    timing = SessionTiming.of(session_timeout)
    assert timing.lease / 0.93 < timing.session_timeout / 1.07
    assert timing.controller_lease / 0.93 < timing.controller_session / 1.07
    assert timing.lease / 0.93 < (timing.force_after + timing.controller_session) / 1.07


def test_force_is_used_before_the_leases_of_other_nodes_end():
    timing = SessionTiming.of()
    jitter = age_of_confirmation = timing.heartbeat_interval
    assert timing.force_after + jitter < timing.lease - age_of_confirmation
