"""Who a connection is: mechanisms, credentials, TLS. Knows nothing of requests or of the road that its tokens travel."""
