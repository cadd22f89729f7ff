"""Extension modules. They are optional: without a C compiler the pure Python versions are used."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "records._kernel",
            ["records/_kernel.pyx"],
            depends=[
                "records/_crc32.h",
                "records/_messages.pxi",
                "records/_batches.pxi",
                "records/_jobs.pxi",
            ],
            include_dirs=["records"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "gateway.protocol.wire._plain",
            ["gateway/protocol/wire/_plain.pyx"],
            depends=[
                "records/_crc32.h",
                "gateway/protocol/wire/_produce.pxi",
                "gateway/protocol/wire/_fetch.pxi",
            ],
            include_dirs=["records"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "gateway.fetch._entry_loops",
            ["gateway/fetch/_entry_loops.pyx"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "storage._files",
            ["storage/_files.pyx"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "storage.lmdb._appends",
            ["storage/lmdb/_appends.pyx"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "storage.lmdb._frames",
            ["storage/lmdb/_frames.pyx"],
            depends=["records/_crc32.h", "storage/lmdb/_nowait.h"],
            include_dirs=["records", "storage/lmdb"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "storage.pulsar.client._library",
            ["storage/pulsar/client/_library.pyx"],
            depends=["storage/pulsar/client/_library.h"],
            include_dirs=["storage/pulsar/client"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
    ]
)
