"""Anyone's implementation of a stage, verified by drawn inputs, and its slip.

definition    what a definition states: arguments, steps, cases, conventions, slips
definitions   the table of all definitions, a file for each group of them
cases         the inputs of a case, drawn from a seed
binding       which argument of a definition a parameter takes, by a table of synonyms
interpreter   what runs in the process of an implementation in Python: it loads, constructs and calls, with NumPy alone
drivers       how implementations are used there that are no function of arrays: optimizers, batches, tokenizers
callees       implementations in Python: an object of this process, a file in a process of its own
verdict       the outcome of each case, the conventions and the slip that explain them, the smallest case that fails
programs      programs of any language, started for each case
courses       functions of courses, and the stages that they stand for
checks        what a check is asked to do: an implementation of one stage, or all that a file has
report        what was found, as a record that shows itself
grading       reports for graders: JUnit, Gradescope
templates     examples to start from: a function of Python, a program in C
"""
