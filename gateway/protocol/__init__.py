"""From a frame to a handler's reply: log-in state, dispatch, routes, errors and the codec (`wire`)."""
