"""Report pages of results."""

from foveate_lab.report.page import WrittenPage, write_page

__all__ = ["WrittenPage", "write_page"]
