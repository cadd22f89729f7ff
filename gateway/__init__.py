"""A Kafka broker as its clients see it.

A request passes framing, session, dispatch, handler, then the log or the group; the handler's
return value is the reply.
"""
