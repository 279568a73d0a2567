"""The command line of all tools, and the pipe between them.

options        how options are declared with Typer, the values they take, and the options that several tools share
constraints    the tables of options that exclude or require each other
operands       the files that options and arguments name: FILE, FILE:NAME, - and :NAME; the values Python passes instead
output_format  the format of the output, by option, suffix, input and terminal
tool           what a tool is: a typed function of a record, with what command line, pipe and Python need of it
stage          one call of a tool: its operands, its stream of records, their history, its side outputs
causes         the file, option or layer that an error or a NaN comes from
calls          a tool as a function of Python: the decorator `@tool`, and a call with its keywords
signature      a tool's signature for Python, and the stub of the package
text_input     the readers of tools that take text
views          tables, heat maps, statistics and lists of a record's tensors; attribution_views: those of attributions
parser         a tool's command line, parsed and explained by Typer from its options
completion     what completes a command line in bash, zsh and fish, by Typer
output         the writers of results: files, standard output, terminals
pipeline       several stages in one process; pipeline_trace: what each of them computes, as one record
main           the entry point: choose a tool, run it, report an error in one line, return the exit code
"""
