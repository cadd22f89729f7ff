"""Drives kcat by the command line in README.md: `kcat.py KCAT-BINARY produce|consume|group ...`.

kcat takes one partition, one set of headers and one meaning of "empty" per process, so each run of
it sends consecutive records that share these. It cannot set timestamps, and cannot send two kinds
of records: a null key with an empty value, and an empty key with a null value.
"""

import base64
import itertools
import os
import re
import subprocess
import sys
from urllib.parse import quote, unquote

# Delimiters of several bytes that no record holds.
KEY_END = b"\x01key-end\x02\x03\x05"
RECORD_END = b"\x01record-end\x02\x03\x05"
LIBRARY = re.compile(r"librdkafka ([0-9.]+)")
DELIVERED = re.compile(rb"delivered to partition (-?\d+) \(offset (-?\d+)\)")


def decoded(text):
    return None if text == "-" else base64.b64decode(text)


def encoded(raw):
    return "-" if raw is None else base64.b64encode(raw).decode("ascii")


def escaped(raw):
    return "".join("\\x%02x" % byte for byte in raw)


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
    settings = {"client.id": options["client-id"]} if "client-id" in options else {}
    settings.update(one.split("=", 1) for one in options.get("config", "").split(",") if one)
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


def argv(kcat, options, settings, *more):
    words = [kcat, "-b", options["bootstrap"]]
    for name, value in settings.items():
        words += ["-X", "%s=%s" % (name, value)]
    return words + list(more)


def produce(kcat, options):
    settings = common(options)
    settings["message.timeout.ms"] = str(int(float(options["timeout"]) * 1000))
    if "acks" in options:
        settings["request.required.acks"] = "-1" if options["acks"] == "all" else options["acks"]
    for name, setting in (("linger", "queue.buffering.max.ms"), ("batch-bytes", "batch.size")):
        if name in options:
            settings[setting] = options[name]
    if "idempotent" in options:
        settings["enable.idempotence"] = "true"
    records = (line.rstrip("\n").split("\t") for line in sys.stdin)
    for (topic, partition, nulls, headers), run in itertools.groupby(records, sharing):
        words = argv(
            kcat,
            options,
            settings,
            "-P",
            "-t",
            topic,
            "-p",
            partition,
            "-z",
            options.get("codec", "none"),
            "-vv",
        )
        words += ["-D", escaped(RECORD_END), "-K", escaped(KEY_END)] + (["-Z"] if nulls else [])
        for one in [] if headers == "-" else headers.split(","):
            name, _, value = one.partition("=")
            raw = decoded(value)
            words += ["-H", unquote(name).encode() + (b"" if raw is None else b"=" + raw)]
        send(
            words, topic, [message(decoded(one[3]), decoded(one[4]), nulls) for one in run], options
        )


def sharing(record):
    topic, partition, _, key, value, headers = record
    return topic, partition, key == "-" or value == "-", headers


def message(key, value, nulls):
    if nulls and b"" in (key, value):
        raise ValueError("kcat cannot send an empty key or value beside a null one")
    return (key or b"") + KEY_END + (value or b"") + RECORD_END


def send(words, topic, messages, options):
    done = run_bounded(words, b"".join(messages), options)
    outcomes = DELIVERED.findall(done.stderr)
    for partition, offset in outcomes:
        print("%s\t%d\t%d" % (topic, int(partition), int(offset)))
    sys.stdout.flush()
    if done.returncode or len(outcomes) != len(messages):
        raise RuntimeError(
            "%d of %d records acknowledged, exit code %d\n%s"
            % (len(outcomes), len(messages), done.returncode, tail(done.stderr))
        )


def run_bounded(words, given, options):
    return subprocess.run(
        words,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=float(options["timeout"]),
    )


def tail(raw):
    return raw.decode("utf-8", "replace")[-2000:]


def reading(options):
    settings = common(options)
    if "fetch-wait" in options:
        settings["fetch.wait.max.ms"] = options["fetch-wait"]
    return settings


def consume(kcat, options, spans):
    settings = reading(options)
    if "fetch-bytes" in options:
        settings["fetch.message.max.bytes"] = options["fetch-bytes"]
    settings["auto.offset.reset"] = "error"
    for span in spans:
        topic, partition, start, count = span.split(":")
        if count == "0":
            continue
        read(
            argv(kcat, options, settings, "-C", "-t", topic, "-p", partition, "-o", start),
            topic,
            int(count),
            options,
        )


def group(kcat, options, spans):
    settings = reading(options)
    settings["auto.offset.reset"] = "earliest"
    if "session" in options:
        settings.update({"session.timeout.ms": options["session"], "heartbeat.interval.ms": "500"})
    # kcat commits by itself what it has printed.
    settings["auto.commit.interval.ms"] = "100"
    topic, _, count = spans[0].partition(":")
    # The topic stands last.
    words = argv(kcat, options, settings, "-G", options["group"])
    read(words, topic, int(count), options, [topic])


def read(words, topic, count, options, last=()):
    form = "%p %o %T %K %S %k%s%h" + escaped(RECORD_END)
    try:
        done = run_bounded(
            words + ["-q", "-u", "-c", str(count), "-f", form] + list(last), b"", options
        )
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(
            "timed out, %d records of %s still missing after: %r"
            % (count, topic, (late.stdout or b"")[-100:])
        )
    records = done.stdout.split(RECORD_END)[:-1]
    for record in records:
        show(topic, record)
    sys.stdout.flush()
    if done.returncode or len(records) != count:
        raise RuntimeError(
            "%d of %d records of %s read, exit code %d\n%s"
            % (len(records), count, topic, done.returncode, tail(done.stderr))
        )


def show(topic, record):
    partition, offset, timestamp, key_size, value_size, rest = record.split(b" ", 5)
    key, rest = cut(rest, int(key_size))
    value, headers = cut(rest, int(value_size))
    # kcat prints the number but not its type: for a record without a timestamp that is -1 or, in
    # format 0, 0.
    place = [
        topic,
        partition.decode(),
        offset.decode(),
        "-" if int(timestamp) <= 0 else timestamp.decode(),
    ]
    print("\t".join(place + [encoded(key), encoded(value), headers_to(headers)]))


def cut(raw, size):
    return (None, raw) if size < 0 else (raw[:size], raw[size:])


def headers_to(text):
    """kcat prints `name=value,name=value` without escapes, and NULL for a null."""
    pairs = [one.partition(b"=") for one in text.split(b",")] if text else []
    return (
        ",".join(
            quote(name, safe="") + "=" + encoded(None if value == b"NULL" else value)
            for name, _, value in pairs
        )
        or "-"
    )


if __name__ == "__main__":
    try:
        options, spans = parse(sys.argv[3:])
        if sys.argv[2] == "version":
            print(LIBRARY.search(subprocess.check_output([sys.argv[1], "-V"]).decode()).group(1))
        elif sys.argv[2] == "produce":
            produce(sys.argv[1], options)
        elif sys.argv[2] == "group":
            group(sys.argv[1], options, spans)
        else:
            consume(sys.argv[1], options, spans)
    except Exception as failure:
        sys.stdout.flush()
        print("driver: %s: %s" % (type(failure).__name__, failure), file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
