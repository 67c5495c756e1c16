"""Many runs of one recipe: every combination of swept values with every seed, and tables of the results."""
