"""Consumer groups: who is a member of which, and what they have committed."""
