"""One module for each command: words in, one call, an exit code out."""
