"""Drives kafka-python (1.0 ... 3.0, on Python 2.7 ... 3.13) by the command line in README.md."""

from __future__ import print_function

import base64
import collections
import logging
import os
import ssl
import sys
import threading
import time

try:
    from urllib import quote, unquote
except ImportError:
    from urllib.parse import quote, unquote

import kafka

try:
    from kafka.errors import NodeNotReadyError
    from kafka.structs import OffsetAndMetadata
except ImportError:
    from kafka.common import NodeNotReadyError, OffsetAndMetadata

VERSION = tuple(int(part) for part in kafka.__version__.split(".")[:2])


def decoded(text):
    return None if text == "-" else base64.b64decode(text)


def encoded(raw):
    return "-" if raw is None else base64.b64encode(bytes(raw)).decode("ascii")


def parse(words):
    options, spans = {"timeout": "30"}, []
    words = iter(words)
    for word in words:
        if not word.startswith("--"):
            spans.append(word)
        elif word == "--idempotent":
            options["idempotent"] = "true"
        else:
            options[word[2:]] = next(words)
    return options, spans


def common(options):
    settings = {"bootstrap_servers": options["bootstrap"]}
    if "client-id" in options:
        settings["client_id"] = options["client-id"]
    if "api-version" in options:
        settings["api_version"] = tuple(int(part) for part in options["api-version"].split("."))
    if VERSION >= (3, 0):
        settings["bootstrap_timeout_ms"] = int(float(options["timeout"]) * 1000)
    elif VERSION >= (1, 3):
        # Two seconds by default, for all that comes before the first request.
        settings["api_version_auto_timeout_ms"] = int(float(options["timeout"]) * 1000)
    elif "retries" not in options:
        # The two-second default has no setting; the arguments are node_id, timeout, strict.
        asks = kafka.client_async.KafkaClient.check_version
        getattr(asks, "__func__", asks).__defaults__ = (None, float(options["timeout"]), False)
    sasl, ca = options.get("sasl"), options.get("tls-ca")
    if sasl or ca:
        settings["security_protocol"] = ("SASL_" if sasl else "") + ("SSL" if ca else "PLAINTEXT")
    if sasl:
        settings["sasl_mechanism"] = sasl
    if "user" in options:
        name, _, password = options["user"].partition(":")
        if sasl == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = FixedToken(password)
        else:
            # Of PLAIN, and of SCRAM, too.
            settings.update(sasl_plain_username=name, sasl_plain_password=password)
    if ca:
        settings["ssl_context"] = ssl.create_default_context(cafile=ca)
        if "tls-certificate" in options:
            settings["ssl_context"].load_cert_chain(options["tls-certificate"], options["tls-key"])
    return settings


def connected(make, options):
    """Return make(), with --retries tried again while a broker refuses the connection.

    kafka-python 1.0 asks one broker for its version. After a refused connection it does not find
    it ready any more, until its timeout.
    """
    deadline = time.time() + float(options["timeout"])
    while True:
        try:
            return make()
        except NodeNotReadyError:
            if "retries" not in options or time.time() > deadline:
                raise
            time.sleep(0.1)


class FixedToken(object):
    def __init__(self, token):
        self._token = token

    def token(self):
        return self._token

    def extensions(self):
        return {}


def headers_from(text):
    pairs = [] if text == "-" else [one.partition("=") for one in text.split(",")]
    return [(unquote(name), decoded(value)) for name, _, value in pairs]


def headers_to(headers):
    return (
        ",".join(quote(name, safe="") + "=" + encoded(value) for name, value in headers or ())
        or "-"
    )


def carries_headers(options):
    """Format 2 came with Kafka 0.11; a client that is set to an older one refuses headers."""
    return VERSION >= (1, 4) and tuple(
        int(part) for part in options.get("api-version", "9").split(".")
    ) >= (0, 11)


class Feed(threading.Thread):
    """Reads stdin and sends.

    Sent records are in `sent`, which is bounded, so that a producer without answers stops reading.
    """

    LIMIT = 10000

    def __init__(self, producer, carries_headers):
        threading.Thread.__init__(self)
        self.daemon = True
        self.producer = producer
        self.carries_headers = carries_headers
        self.sent = collections.deque()
        self.failure = None
        self.is_over = False

    def run(self):
        try:
            for line in iter(sys.stdin.readline, ""):
                while len(self.sent) > self.LIMIT:
                    time.sleep(0.001)
                topic, partition, timestamp, key, value, headers = line.rstrip("\n").split("\t")
                more = {}
                if VERSION >= (1, 3) and timestamp != "-":
                    more["timestamp_ms"] = int(timestamp)
                if self.carries_headers and headers != "-":
                    more["headers"] = headers_from(headers)
                future = self.producer.send(
                    topic, decoded(value), key=decoded(key), partition=int(partition), **more
                )
                self.sent.append((topic, partition, future))
        except Exception as failure:
            self.failure = failure
        self.is_over = True


def produce(options):
    codec = options.get("codec", "none")
    settings = common(options)
    if "acks" in options:
        settings["acks"] = "all" if options["acks"] == "all" else int(options["acks"])
    for name, setting in (("linger", "linger_ms"), ("batch-bytes", "batch_size")):
        if name in options:
            settings[setting] = int(options[name])
    if "retries" in options:
        settings["retries"] = int(options["retries"])
    if "idempotent" in options:
        settings["enable_idempotence"] = True
    elif VERSION >= (3, 0) and "acks" in options:
        settings["enable_idempotence"] = options["acks"] == "all"
    patience = int(float(options["timeout"]) * 1000)
    producer = connected(
        lambda: kafka.KafkaProducer(
            compression_type=None if codec == "none" else codec, max_block_ms=patience, **settings
        ),
        options,
    )
    feed = Feed(producer, carries_headers(options))
    feed.start()
    while True:
        if feed.failure:
            raise feed.failure
        if not feed.sent:
            if feed.is_over and not feed.failure and not feed.sent:
                break
            sys.stdout.flush()
            time.sleep(0.001)
            continue
        topic, partition, future = feed.sent.popleft()
        if not future.is_done:
            sys.stdout.flush()
        offset = future.get(timeout=patience / 1000.0).offset
        print("%s\t%s\t%d" % (topic, partition, -1 if offset is None else offset))
    sys.stdout.flush()
    producer.close(timeout=2)


def reading(options):
    settings = common(options)
    if "fetch-wait" in options:
        settings["fetch_max_wait_ms"] = int(options["fetch-wait"])
    return settings


def consume(options, spans):
    settings = reading(options)
    if "fetch-bytes" in options:
        settings["max_partition_fetch_bytes"] = int(options["fetch-bytes"])
    # group_id None: no coordinator. An unknown offset must be an error, not a silent jump.
    consumer = kafka.KafkaConsumer(
        group_id=None, enable_auto_commit=False, auto_offset_reset="none", **settings
    )
    missing = {}
    starts = {}
    for span in spans:
        topic, partition, start, count = span.split(":")
        where = kafka.TopicPartition(topic, int(partition))
        starts[where] = None if start == "beginning" else int(start)
        if int(count):
            missing[where] = int(count)
    consumer.assign(list(starts))
    for where, start in starts.items():
        if start is None:
            consumer.seek_to_beginning(where)
        else:
            consumer.seek(where, start)
    deadline = time.time() + float(options["timeout"])
    while missing:
        if time.time() > deadline:
            raise RuntimeError("timed out, records still missing: %r" % missing)
        for where, records in consumer.poll(200).items():
            for record in records:
                if where not in missing:
                    continue
                missing[where] -= 1
                if not missing[where]:
                    del missing[where]
                show(record)
        sys.stdout.flush()


def group(options, spans):
    topic, _, count = spans[0].partition(":")
    settings = reading(options)
    if "session" in options:
        settings.update(session_timeout_ms=int(options["session"]), heartbeat_interval_ms=500)
    consumer = connected(
        lambda: kafka.KafkaConsumer(
            group_id=options["group"],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **settings
        ),
        options,
    )
    consumer.subscribe([topic])
    missing = int(count)
    deadline = time.time() + float(options["timeout"])
    while missing:
        if time.time() > deadline:
            raise RuntimeError("timed out, records still missing: %d" % missing)
        following = {}
        # If a poll of 3.0 ends between JoinGroup and SyncGroup, the client skips SyncGroup and
        # stops fetching and sending heartbeats.
        patience = 200 if VERSION < (3, 0) else max(0, int(1000 * (deadline - time.time())))
        for where, records in consumer.poll(patience).items():
            for record in records[:missing]:
                # (offset, metadata), and in newer versions the leader's epoch, which -1 leaves out.
                following[where] = OffsetAndMetadata(
                    *(record.offset + 1, "", -1)[: len(OffsetAndMetadata._fields)]
                )
                show(record)
            missing -= min(missing, len(records))
        if following:
            consumer.commit(following)
    sys.stdout.flush()
    # Leaves the group.
    consumer.close()


def show(record):
    timestamp = getattr(record, "timestamp", None)
    if timestamp is None or timestamp < 0:
        timestamp = "-"
    place = "%s\t%d\t%d\t%s" % (record.topic, record.partition, record.offset, timestamp)
    print(
        "\t".join(
            (
                place,
                encoded(record.key),
                encoded(record.value),
                headers_to(getattr(record, "headers", None)),
            )
        )
    )


def main():
    verb = sys.argv[1]
    options, spans = parse(sys.argv[2:])
    if verb == "produce":
        produce(options)
    elif verb == "group":
        group(options, spans)
    else:
        consume(options, spans)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    try:
        main()
    except Exception as failure:
        sys.stdout.flush()
        print("driver: %s: %s" % (type(failure).__name__, failure), file=sys.stderr)
        sys.stderr.flush()
        # Threads of the client may wait for ever for a broker that refuses them.
        os._exit(1)
