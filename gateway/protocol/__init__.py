"""From a frame to the handler and its reply: login, dispatch, routes, errors and the codec.

May import `gateway.broker`, `gateway.traffic` and `auth`. Handlers import this folder and are found
in `routes`, not the reverse. Every folder of the gateway may import `errors`.
"""
