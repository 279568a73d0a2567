"""A pipeline as a workbook whose cells are live formulas.

blocks      a tensor as blocks of cells, and references to them
formulas    the formula of each kind of node
sheets      the sheet of each stage: its graph, evaluated and written as blocks
"""
