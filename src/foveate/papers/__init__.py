"""The five papers that Foveate implements, one file each."""
