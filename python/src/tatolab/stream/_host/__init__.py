"""Running a node: docs/node-protocol.md."""
