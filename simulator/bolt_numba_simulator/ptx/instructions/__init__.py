"""Instructions: each module decodes those of one kind, for the table of opcodes."""
