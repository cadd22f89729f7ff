"""What the tables say: activity, identity of clients, readiness for a target, costs and trend."""
