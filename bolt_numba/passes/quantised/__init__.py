"""Rules of stage ``quantise``: what stands between conversions runs on the integers."""
