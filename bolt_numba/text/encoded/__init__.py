"""Models that write what an encoder makes of something else: translations, and what is said."""
