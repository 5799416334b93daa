"""Rules of the stage `quantise`: float operators between conversions become operators on bytes."""
