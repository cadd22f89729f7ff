"""Extension modules. They are optional: without a C compiler the pure Python versions are used."""

import os

from setuptools import Extension, setup

#: CFLAGS in the environment replace those of Python, which include the last two. `make sanitize`
#: sets others.
FLAGS = os.environ.get("KOPGATE_COMPILER_FLAGS", "-O3 -fwrapv -DNDEBUG").split()

setup(
    # Compilers run beside each other.
    options={"build_ext": {"parallel": True}},
    ext_modules=[
        Extension(
            "records._kernel",
            ["records/_kernel.pyx"],
            depends=[
                "records/_crc32.h",
                "records/_messages.pxi",
                "records/_batches.pxi",
                "records/_jobs.pxi",
                "records/_gzip.pxi",
                "records/_snappy.pxi",
            ],
            include_dirs=["records"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "gateway.protocol.wire._plain",
            ["gateway/protocol/wire/_plain.pyx"],
            depends=[
                "records/_crc32.h",
                "storage/_bridge.pxd",
                "storage/_log.pxd",
                "gateway/protocol/wire/_dispatch.pxi",
                "gateway/protocol/wire/_produce.pxi",
                "gateway/protocol/wire/_fetch.pxi",
                "gateway/protocol/wire/_repeated.pxi",
            ],
            include_dirs=["records"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "gateway._reactor",
            ["gateway/_reactor.pyx"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "gateway.fetch._entry_loops",
            ["gateway/fetch/_entry_loops.pyx"],
            depends=["storage/_log.pxd"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "gateway.fetch._reading",
            ["gateway/fetch/_reading.pyx"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "storage._bridge",
            ["storage/_bridge.pyx"],
            depends=["storage/_bridge.pxd"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "storage._log",
            ["storage/_log.pyx"],
            depends=["storage/_log.pxd"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "storage._files",
            ["storage/_files.pyx"],
            depends=["storage/_files.pxd", "storage/_log.pxd"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "storage.lmdb._frames",
            ["storage/lmdb/_frames.pyx"],
            depends=[
                "records/_crc32.h",
                "storage/_bridge.pxd",
                "storage/_files.pxd",
                "storage/_log.pxd",
                "storage/lmdb/_appends.pxi",
                "storage/lmdb/_reads.pxi",
                "storage/lmdb/_nowait.h",
            ],
            include_dirs=["records", "storage/lmdb"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "storage.pulsar.client._library",
            ["storage/pulsar/client/_library.pyx"],
            depends=[
                "storage/_bridge.pxd",
                "storage/_log.pxd",
                "storage/pulsar/client/_appends.pxi",
                "storage/pulsar/client/_library.h",
                "storage/pulsar/client/_received.pxi",
            ],
            include_dirs=["storage/pulsar/client"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
    ],
)
