"""Fast paths, each tested against the formula it must equal."""
