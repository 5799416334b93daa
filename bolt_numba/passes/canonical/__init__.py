"""One spelling for each idea, and what is known before a run is computed."""
