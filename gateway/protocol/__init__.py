"""From a frame to the handler and its reply: login, dispatch, routes, errors and the codec
(`wire`).
"""
