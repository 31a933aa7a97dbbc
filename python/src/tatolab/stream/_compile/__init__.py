"""Compiling a stream: docs/compile-protocol.md."""
