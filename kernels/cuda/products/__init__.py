"""Matrix products: tiles of f32 on plain cores, tiles of halves and bytes on tensor cores, and few rows by warps."""
