"""Laws are tested on examples, never on time: the first one loads the catalogue."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
