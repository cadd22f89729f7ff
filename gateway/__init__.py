"""The server: a Kafka broker to its clients. bytes -> framing -> session -> dispatch -> handler -> log or group -> reply."""
