"""Models and records: inputs, prompts, text generation, scoring, hooks. No command line, no stdout."""
