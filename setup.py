"""Extension modules. They are optional: without a C compiler the pure Python versions are used."""

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
