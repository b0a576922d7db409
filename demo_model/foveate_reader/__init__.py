"""The reader: a small model of scanned documents, with the published eyes of PP-OCRv6."""
