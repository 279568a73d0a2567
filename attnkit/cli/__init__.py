"""What every tool shares: options, operands, stages of a pipe, output, errors and exit codes."""
