"""A record of what the library does: 300 drawn runs and the list of its capabilities.

Golden files pin single functions. The record pins outcomes: kept sets, logits, stored bytes,
files, texts, exit codes and errors, reached through public names alone. A rewrite that moves
private things leaves it unchanged.

    python -m tests.record                      compare with tests/record/record.json
    python -m tests.record --write              take a new record
    python -m tests.record --accept 'chat/*' --because "system= is refused now"
"""
