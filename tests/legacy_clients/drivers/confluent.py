"""Drives confluent-kafka (librdkafka; Python 3.6 ... 3.13) by the command line in README.md."""

import base64
import os
import sys
import threading
import time
from urllib.parse import quote, unquote

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
    libversion,
)

IN_FLIGHT = 10000


def decoded(text):
    return None if text == "-" else base64.b64decode(text)


def encoded(raw):
    return "-" if raw is None else base64.b64encode(raw).decode("ascii")


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


def common(options, failures):
    def on_error(error):
        # librdkafka retries a refused log-in for ever; to a test that is a failure.
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            failures.append(error)

    settings = {"bootstrap.servers": options["bootstrap"], "error_cb": on_error}
    if "client-id" in options:
        settings["client.id"] = options["client-id"]
    for name in options.get("config", "").split(","):
        if name:
            key, _, value = name.partition("=")
            settings[key] = value
    sasl, ca = options.get("sasl"), options.get("tls-ca")
    if sasl or ca:
        settings["security.protocol"] = ("SASL_" if sasl else "") + ("SSL" if ca else "PLAINTEXT")
    if sasl:
        settings["sasl.mechanisms"] = sasl
    if "user" in options:
        name, _, password = options["user"].partition(":")
        settings.update({"sasl.username": name, "sasl.password": password})
    if ca:
        settings["ssl.ca.location"] = ca
    if "tls-certificate" in options:
        settings["ssl.certificate.location"] = options["tls-certificate"]
        settings["ssl.key.location"] = options["tls-key"]
    return settings


def headers_from(text):
    pairs = [] if text == "-" else [one.partition("=") for one in text.split(",")]
    return [(unquote(name), decoded(value)) for name, _, value in pairs]


def headers_to(headers):
    return (
        ",".join(quote(name, safe="") + "=" + encoded(value) for name, value in headers or ())
        or "-"
    )


class InOrder:
    """Prints acknowledgements in the order of input; early ones wait for the one before them."""

    def __init__(self, failures):
        self.early = {}
        self.printed = 0
        self.failures = failures

    def callback(self, index):
        def delivered(error, message):
            if error is not None:
                self.failures.append(error)
                return
            offset = message.offset()
            self.early[index] = "%s\t%d\t%d" % (
                message.topic(),
                message.partition(),
                -1 if offset is None or offset < 0 else offset,
            )
            while self.printed in self.early:
                print(self.early.pop(self.printed))
                self.printed += 1

        return delivered


def produce(options):
    failures = []
    settings = common(options, failures)
    settings.update(
        {
            "compression.codec": options.get("codec", "none"),
            "message.timeout.ms": int(float(options["timeout"]) * 1000),
        }
    )
    if "acks" in options:
        settings["request.required.acks"] = -1 if options["acks"] == "all" else int(options["acks"])
    if "linger" in options:
        settings["queue.buffering.max.ms"] = int(options["linger"])
    if "retries" in options:
        settings["message.send.max.retries"] = int(options["retries"])
    if "idempotent" in options:
        settings["enable.idempotence"] = True
    if version() < (1, 0):
        # Otherwise only the last record of a batch gets its offset.
        settings["produce.offset.report"] = True
    if "batch-bytes" in options:
        batch = int(options["batch-bytes"])
        # batch.size came with librdkafka 1.5; before it only the number of messages bounds a batch.
        settings.update(
            {"batch.size": batch}
            if hasattr(Producer, "list_topics") and version() >= (1, 5)
            else {"batch.num.messages": max(1, batch // 512)}
        )
    producer = Producer(settings)
    acknowledged = InOrder(failures)
    feed = Feed(producer, acknowledged)
    feed.start()
    deadline = None
    while not failures and not (feed.is_over and acknowledged.printed == feed.count):
        producer.poll(0.02)
        sys.stdout.flush()
        if feed.is_over and deadline is None:
            deadline = time.time() + float(options["timeout"])
        if deadline and time.time() > deadline:
            raise RuntimeError(
                "timed out with %d of %d records acknowledged" % (acknowledged.printed, feed.count)
            )
    if failures:
        raise RuntimeError(str(failures[0]))


class Feed(threading.Thread):
    """Reads stdin and sends, so that acknowledgements are seen while stdin is quiet."""

    def __init__(self, producer, acknowledged):
        threading.Thread.__init__(self)
        self.daemon = True
        self.producer = producer
        self.acknowledged = acknowledged
        self.count = 0
        self.is_over = False

    def run(self):
        try:
            for line in iter(sys.stdin.readline, ""):
                while self.count - self.acknowledged.printed > IN_FLIGHT:
                    time.sleep(0.001)
                self.send(*line.rstrip("\n").split("\t"))
        except Exception as failure:
            self.acknowledged.failures.append(failure)
        self.is_over = True

    def send(self, topic, partition, timestamp, key, value, headers):
        more = {} if timestamp == "-" else {"timestamp": int(timestamp)}
        if headers != "-":
            more["headers"] = headers_from(headers)
        on_delivery = self.acknowledged.callback(self.count)
        self.count += 1
        self.producer.produce(
            topic, decoded(value), decoded(key), int(partition), on_delivery=on_delivery, **more
        )


def version():
    return tuple(int(part) for part in libversion()[0].split("-")[0].split(".")[:2])


def reading(options, failures):
    settings = common(options, failures)
    if "fetch-wait" in options:
        settings["fetch.wait.max.ms"] = int(options["fetch-wait"])
    return settings


def consume(options, spans):
    failures = []
    settings = reading(options, failures)
    # librdkafka requires a group id, but partitions are assigned manually and nothing is committed.
    settings.update(
        {
            "group.id": "legacy-driver",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "auto.offset.reset": "error",
        }
    )
    if "fetch-bytes" in options:
        settings["fetch.message.max.bytes"] = int(options["fetch-bytes"])
    missing, starts = {}, []
    for span in spans:
        topic, partition, start, count = span.split(":")
        starts.append(
            TopicPartition(
                topic, int(partition), OFFSET_BEGINNING if start == "beginning" else int(start)
            )
        )
        if int(count):
            missing[topic, int(partition)] = int(count)
    consumer = Consumer(settings)
    consumer.assign(starts)
    deadline = time.time() + float(options["timeout"])
    while missing:
        if time.time() > deadline:
            raise RuntimeError("timed out, records still missing: %r" % missing)
        if failures:
            raise RuntimeError(str(failures[0]))
        for record in consumer.consume(500, 0.2):
            if record.error():
                raise RuntimeError(str(record.error()))
            where = record.topic(), record.partition()
            if where not in missing:
                continue
            missing[where] -= 1
            if not missing[where]:
                del missing[where]
            show(record)
        sys.stdout.flush()


def group(options, spans):
    failures = []
    settings = reading(options, failures)
    settings.update(
        {
            "group.id": options["group"],
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "auto.offset.reset": "earliest",
        }
    )
    if "session" in options:
        settings.update(
            {"session.timeout.ms": int(options["session"]), "heartbeat.interval.ms": 500}
        )
    topic, _, count = spans[0].partition(":")
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    # `async` became a word of the language.
    waits = "asynchronous" if wrapper_version() >= (1, 0) else "async"
    missing = int(count)
    deadline = time.time() + float(options["timeout"])
    while missing:
        if time.time() > deadline:
            raise RuntimeError("timed out, records still missing: %d" % missing)
        if failures:
            raise RuntimeError(str(failures[0]))
        following = {}
        # No more than are wanted: what was taken counts as read.
        for record in consumer.consume(missing, 0.2):
            if record.error():
                if "retries" in options:
                    # Before 1.0, librdkafka reports errors from which it recovers.
                    continue
                raise RuntimeError(str(record.error()))
            following[record.partition()] = record.offset() + 1
            show(record)
            missing -= 1
        if following:
            commit(
                consumer,
                int(options.get("retries", "0")),
                offsets=[
                    TopicPartition(topic, partition, offset)
                    for partition, offset in following.items()
                ],
                **{waits: False},
            )
    sys.stdout.flush()
    # Leaves the group.
    consumer.close()


def commit(consumer, retries, **arguments):
    """Commit, up to `retries` more times: librdkafka does not retry all errors of a commit."""
    while True:
        try:
            consumer.commit(**arguments)
            return
        except KafkaException:
            if not retries:
                raise
            retries -= 1
            time.sleep(0.1)


def commits(options, spans):
    """Commits every --every ms while a fetch waits on the idle topic."""
    failures = []
    settings = reading(options, failures)
    settings.update(
        {"group.id": options["group"], "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    topic, _, count = spans[0].partition(":")
    place = TopicPartition(topic, 0, 0)
    consumer = Consumer(settings)
    consumer.assign([place])
    waits = "asynchronous" if wrapper_version() >= (1, 0) else "async"
    deadline = time.time() + float(options["timeout"])
    pause = float(options.get("every", "100")) / 1000
    done = -1
    while done < int(count):
        for record in consumer.consume(100, pause):
            if record.error() and record.error().code() != KafkaError._PARTITION_EOF:
                raise RuntimeError(str(record.error()))
        if failures or time.time() > deadline:
            raise RuntimeError(str(failures[0]) if failures else "timed out")
        began = time.time()
        try:
            consumer.commit(offsets=[place], **{waits: False})
        except KafkaException:
            # The first commit finds the coordinator, which may still be loading.
            if done >= 0:
                raise
            continue
        if done >= 0:
            print("%.6f" % (time.time() - began))
        done += 1


def transaction(options, name):
    failures = []
    settings = common(options, failures)
    settings["transactional.id"] = name
    producer = Producer(settings)
    began = time.time()
    try:
        producer.init_transactions(float(options["timeout"]))
    except KafkaException as refused:
        print("%.6f\t%s" % (time.time() - began, refused.args[0].name()))
    else:
        print("ready")


def wrapper_version():
    import confluent_kafka

    return tuple(int(part) for part in confluent_kafka.version()[0].split(".")[:2])


def show(record):
    kind, timestamp = record.timestamp()
    place = "%s\t%d\t%d\t%s" % (
        record.topic(),
        record.partition(),
        record.offset(),
        timestamp if kind and timestamp >= 0 else "-",
    )
    print(
        "\t".join(
            (place, encoded(record.key()), encoded(record.value()), headers_to(record.headers()))
        )
    )


def main():
    verb = sys.argv[1]
    options, spans = parse(sys.argv[2:])
    if verb == "version":
        print(libversion()[0])
    elif verb == "produce":
        produce(options)
    elif verb == "group":
        group(options, spans)
    elif verb == "commits":
        commits(options, spans)
    elif verb == "transaction":
        transaction(options, spans[0])
    else:
        consume(options, spans)


if __name__ == "__main__":
    code = 0
    try:
        main()
    except Exception as failure:
        sys.stdout.flush()
        print("driver: %s: %s" % (type(failure).__name__, failure), file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Closing waits for brokers that may refuse us; everything owed has been printed.
    os._exit(code)
