"""Keys and tokens that `pulsar tokens` of Pulsar 4.0.8 wrote, for the subject `alice`."""

from __future__ import annotations

import base64

# create-secret-key, and create-secret-key --base64: the content of the file.
SECRET_KEY = bytes.fromhex("68bddcb73992a903a614ab2e18f58584abcdff8e5b6bc3cc30e75a3ba330dbd2")
SECRET_TOKEN = (
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.UpsLTL5aUQF_opNjLGQWNLab4d-lTbtUD5k4C6LrZFM"
)
BASE64_KEY = b"izUou6cfPoAYjl1JPFxJz4fGoJNnD8WsKwHMIQovdaA="
BASE64_TOKEN = (
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.Idqcczh6wh_kTURPm1bV7W7YGe7-WqRMeFE3KQI0BLs"
)

# create-key-pair, with RS256 and with ES256.
RSA_KEY = base64.b64decode(
    "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAwYnAP2Ahgz3O30BeHIqeZCWQYdbCPNZFcJ0v9JU+Jj3y"
    "/NDGnFGzykHcPbCKxhPzoRNhyTqNtA5Vy15SW5b/HNO4H+Om+tBDiGAzellUv/WsarU04579J6FqvAI+7+mmq1dj"
    "wHHeK7JLM4TqBKlcwA8oW4JJ9s+xg9LR4tpY6UUvV/eZeFva1/eFS3vJUxwfFPncaVRU0VZ88YhjJCnoxmhlz3DU"
    "WL6qy/DpXVYY/OYfd79xNkY5Q9tHSBOqtQbpEwt97aJKeYnYnsbyQbXzddwRVutXdxgGJn3L1xNKmsrD7S5FndwO"
    "qrvgNVGix1OxTdB/3ei38/ZUyInhSLPcGQIDAQAB"
)
RSA_TOKEN = (
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.MUxAqfwtCLH9opAo1LnJWuGeIwWwDY1mv0edJJp3MPdQj3"
    "ONXGF0ICKwzB_S72CUOJLdWT2f9Riv4Ed0C9s2M7gGHQprOADNNAMjDQ1_irEDlBq89Mpv14zCCAXdU4sZh4rG1M"
    "ZDWSKlMzUpQSEfaV8iA-3WGc-q8Mv36Md4ZP2ebcNe95812kJ8rPx_sO2UedACy5WFDTFMElaxeLnW2uXohqkdqv"
    "_YDa6y4Cm5RRdzc4tAFlkcKiX0QMOC1jyMbJH3OFc01Hks1D7NUB97-xePoBVnGD2Uwrnnw83zcDULYH0qEVMmJZ"
    "YCLESDf_u5GRFc-N578nv49fTwkmvCUA"
)
EC_KEY = base64.b64decode(
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEWjnVY/IPPi460DFBy5tN0KiJNkFAMiJiGLpv8fGc2pgFekKa7wHb"
    "qrB/NoNVAGJUFDBu3fseTBRJ2un5V6EouQ=="
)
EC_TOKEN = (
    "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.F8MA09q9PXICvmPvVow0a2KnU6kQeuCTMrCY90uhc4Zwdi"
    "zZiY_ePmVrq8He0eZ13TX9MgrJbHjsDPPzwG6IqQ"
)
