"""The traffic log: which clients use which API versions, for reports (docs/traffic-log.md)."""
