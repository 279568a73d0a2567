"""Formulas: pure functions of arrays, with their adjoints beside them.

The adjoint of f is `f_backward` or `f_vjp`. No formula reads a configuration, the parameters of a model or its plan.
"""
