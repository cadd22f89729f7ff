"""Drives aiokafka (0.3 ... 0.14, on Python 3.6 ... 3.13) by the command line in README.md."""

import asyncio
import base64
import os
import ssl
import sys
import time
from urllib.parse import quote, unquote

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

VERSION = tuple(int(part) for part in aiokafka.__version__.split(".")[:2])
IN_FLIGHT = 10000


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
    # Older versions require the event loop as an argument.
    if VERSION < (0, 7):
        settings["loop"] = asyncio.get_event_loop()
    sasl, ca = options.get("sasl"), options.get("tls-ca")
    if sasl or ca:
        settings["security_protocol"] = ("SASL_" if sasl else "") + ("SSL" if ca else "PLAINTEXT")
    if sasl:
        settings["sasl_mechanism"] = sasl
    if "user" in options:
        # Of PLAIN, and of SCRAM, too.
        name, _, password = options["user"].partition(":")
        settings.update(sasl_plain_username=name, sasl_plain_password=password)
    if ca:
        settings["ssl_context"] = ssl.create_default_context(cafile=ca)
        if "tls-certificate" in options:
            settings["ssl_context"].load_cert_chain(options["tls-certificate"], options["tls-key"])
    return settings


def headers_from(text):
    pairs = [] if text == "-" else [one.partition("=") for one in text.split(",")]
    return [(unquote(name), decoded(value)) for name, _, value in pairs]


def headers_to(headers):
    return (
        ",".join(quote(name, safe="") + "=" + encoded(value) for name, value in headers or ())
        or "-"
    )


async def produce(options, spans):
    codec = options.get("codec", "none")
    settings = common(options)
    if "acks" in options:
        settings["acks"] = "all" if options["acks"] == "all" else int(options["acks"])
    for name, setting in (("linger", "linger_ms"), ("batch-bytes", "max_batch_size")):
        if name in options:
            settings[setting] = int(options[name])
    if "idempotent" in options:
        settings["enable_idempotence"] = True
    producer = AIOKafkaProducer(compression_type=None if codec == "none" else codec, **settings)
    await producer.start()
    sent = asyncio.Queue(IN_FLIGHT)
    feeding = asyncio.ensure_future(feed(producer, sent))
    while True:
        taken = await sent.get()
        if taken is None:
            break
        topic, partition, future = taken
        done = await asyncio.wait_for(future, float(options["timeout"]))
        print(
            "%s\t%s\t%d"
            % (topic, partition, -1 if done is None or done.offset is None else done.offset)
        )
        if sent.empty():
            sys.stdout.flush()
    await feeding


async def feed(producer, sent):
    loop = asyncio.get_event_loop()
    try:
        while True:
            line = await loop.run_in_executor(None, sys.stdin.readline)
            if not line:
                break
            topic, partition, timestamp, key, value, headers = line.rstrip("\n").split("\t")
            more = {} if timestamp == "-" else {"timestamp_ms": int(timestamp)}
            if VERSION >= (0, 6) and headers != "-":
                more["headers"] = headers_from(headers)
            future = await producer.send(
                topic, decoded(value), key=decoded(key), partition=int(partition), **more
            )
            await sent.put((topic, partition, future))
    finally:
        await sent.put(None)


def reading(options):
    settings = common(options)
    if "fetch-wait" in options:
        settings["fetch_max_wait_ms"] = int(options["fetch-wait"])
    return settings


async def consume(options, spans):
    settings = reading(options)
    if "fetch-bytes" in options:
        settings["max_partition_fetch_bytes"] = int(options["fetch-bytes"])
    # group_id None: no coordinator. An unknown offset must be an error, not a silent jump.
    consumer = AIOKafkaConsumer(
        group_id=None, enable_auto_commit=False, auto_offset_reset="none", **settings
    )
    await consumer.start()
    missing, starts = {}, {}
    for span in spans:
        topic, partition, start, count = span.split(":")
        where = TopicPartition(topic, int(partition))
        starts[where] = None if start == "beginning" else int(start)
        if int(count):
            missing[where] = int(count)
    consumer.assign(list(starts))
    for where, start in starts.items():
        if start is None:
            await consumer.seek_to_beginning(where)
        else:
            consumer.seek(where, start)
    deadline = time.time() + float(options["timeout"])
    while missing:
        if time.time() > deadline:
            raise RuntimeError("timed out, records still missing: %r" % missing)
        for where, records in (await consumer.getmany(timeout_ms=200)).items():
            for record in records[: missing.get(where, 0)]:
                show(record)
            if where in missing:
                missing[where] -= min(missing[where], len(records))
                if not missing[where]:
                    del missing[where]


async def group(options, spans):
    topic, _, count = spans[0].partition(":")
    settings = reading(options)
    settings["group_id"] = options["group"]
    if "session" in options:
        settings.update(session_timeout_ms=int(options["session"]), heartbeat_interval_ms=500)
    consumer = AIOKafkaConsumer(
        topic, enable_auto_commit=False, auto_offset_reset="earliest", **settings
    )
    await consumer.start()
    missing = int(count)
    deadline = time.time() + float(options["timeout"])
    while missing:
        if time.time() > deadline:
            raise RuntimeError("timed out, records still missing: %d" % missing)
        following = {}
        # No more than are wanted: what was taken counts as read.
        for where, records in (await consumer.getmany(timeout_ms=200, max_records=missing)).items():
            for record in records:
                following[where] = record.offset + 1
                show(record)
            missing -= len(records)
        if following:
            await commit(consumer, following, int(options.get("retries", "0")))
    # Leaves the group.
    await consumer.stop()


async def commit(consumer, offsets, retries):
    """Commit, up to `retries` more times: aiokafka 0.3 raises the errors of its coordinator."""
    while True:
        try:
            return await consumer.commit(offsets)
        except KafkaError as error:
            if not retries or not error.retriable:
                raise
            retries -= 1
            await asyncio.sleep(0.1)


async def transaction(options, spans):
    producer = AIOKafkaProducer(transactional_id=spans[0], **common(options))
    began = time.time()
    try:
        await asyncio.wait_for(producer.start(), float(options["timeout"]))
    except Exception as refused:
        print("%.6f\t%s" % (time.time() - began, type(refused).__name__))
    else:
        print("ready")


def show(record):
    timestamp = "-" if record.timestamp is None or record.timestamp < 0 else record.timestamp
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


async def bounded():
    verb = sys.argv[1]
    options, spans = parse(sys.argv[2:])
    # A broker that refuses it is asked for ever by some versions.
    verbs = {"produce": produce, "consume": consume, "group": group, "transaction": transaction}
    await asyncio.wait_for(verbs[verb](options, spans), 2 * float(options["timeout"]))


if __name__ == "__main__":
    code = 0
    try:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(bounded())
    except Exception as failure:
        sys.stdout.flush()
        print("driver: %s: %s" % (type(failure).__name__, failure), file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Closing waits for brokers that may refuse us; everything owed has been printed.
    os._exit(code)
