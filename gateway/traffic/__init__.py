"""The traffic log: who speaks which versions, written down for reports (docs/traffic-log.md)."""
