"""The one thing that pyproject.toml cannot say: what is compiled where that is possible, and done without where it is not."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "compat.records._kernel",
            ["compat/records/_kernel.pyx"],
            depends=[
                "compat/records/_crc32.h",
                "compat/records/_messages.pxi",
                "compat/records/_batches.pxi",
                "compat/records/_jobs.pxi",
            ],
            include_dirs=["compat/records"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "gateway.protocol.wire._plain",
            ["gateway/protocol/wire/_plain.pyx"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
    ]
)
