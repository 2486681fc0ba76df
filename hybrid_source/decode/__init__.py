"""Decoders of message values: bytes in, columns out, with one documented semantics for each format."""

from __future__ import annotations

from hybrid_source.decode.base import Decoded, Decoder
from hybrid_source.decode.json_decoder import JsonDecoder

__all__ = ["Decoded", "Decoder", "JsonDecoder"]
