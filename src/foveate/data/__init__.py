"""Readers of users' data: images, videos, texts, JSON, tables, and folders of them.

Errors in a file are raised as :class:`~foveate.errors.InvalidInput`, which names the file and the
place in it.
"""

from foveate.data.clip import Clip
from foveate.data.folder import Folder
from foveate.data.images import decode_base64, decode_image, read_image, rgb
from foveate.data.records import Record, read_lines, read_record, read_records
from foveate.data.tables import listed, read_table, table_images
from foveate.data.texts import read_text
from foveate.data.videos import VideoFile, VideoParts, read_video

__all__ = [
    "Clip",
    "Folder",
    "Record",
    "VideoFile",
    "VideoParts",
    "decode_base64",
    "decode_image",
    "listed",
    "read_image",
    "read_lines",
    "read_record",
    "read_records",
    "read_table",
    "read_text",
    "read_video",
    "rgb",
    "table_images",
]
