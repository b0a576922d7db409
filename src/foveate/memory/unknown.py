"""What nothing says beforehand."""


class Unknown(Exception):
    """Something that cannot be known beforehand, with the reason."""
