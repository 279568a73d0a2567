"""The command line of all tools, and the pipe between them. Each module imports those above it alone.

options        the kinds of options, the values they parse, and the options that several tools share
constraints    the tables of options that exclude or require each other
operands       the files that options and arguments name: FILE, FILE:NAME, - and :NAME
error_context  the tool and the file or option that an error is of
history        command lines out of names and values, and the entry of a result's history
output_format  the format of the output, by flag, suffix, input and terminal
side_outputs   the files that a tool writes beside its result, replaced together with it
stage          a tool, and one call of it: its operands, its parameters, its stream of records
tool           the decorator `@tool`: a typed function as a command, a stage of a pipe, and a function of Python
signature      a tool's signature for Python, and the stub of the package
text_input     the readers of tools that take text
views          tables, heat maps, statistics and lists of a record's tensors
attribution_views   the views of attributions
parser         a tool's command line, parsed with Typer from its options
output         the writers of results: files, standard output, terminals
pipeline       several stages in one process; pipeline_trace: what each of them computes, as one record
main           the entry point: choose a tool, run it, report an error in one line, return the exit code
"""
