"""The command line of all tools, and the pipe between them.

main           the entry point: choose a tool, run it, report an error in one line, return the exit code
tool           the decorator `@tool`: a typed function as a command, a stage of a pipe, and a function of Python
options        the kinds of flags, the values they parse, and the flags that several tools share
parser         a tool's command line, parsed with Typer from its flags
constraints    the tables of flags that exclude or require each other
signature      a tool's signature for Python, and the stub of the package
operands       the files that flags and arguments name: FILE, FILE:NAME, - and :NAME
text_input     the readers of tools that take text
stage          one call of a tool: its operands, its parameters, its stream of records
pipeline       several stages in one process
history        the command line of a call, as the history of its result keeps it
views          tables, heat maps, statistics and lists of a record's tensors
output         the writers of results: files, standard output, terminals
output_format  the format of the output, by flag, suffix, input and terminal
"""
